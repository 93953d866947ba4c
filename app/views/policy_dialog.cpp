// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/policy_dialog.h"

#include <QComboBox>
#include <QFormLayout>
#include <QLabel>
#include <QPushButton>
#include <QSpinBox>
#include <QStackedWidget>
#include <QVBoxLayout>

#include "app/models/labels.h"
#include "app/views/job_commands.h"
#include "app/widgets/theme.h"
#include "backend/model/ledger_audit.h"

namespace bulkhead::ui {
namespace {

constexpr int kMost = 1'000'000;

QLabel* muted(const QString& accessibleName) {
    auto* label = new QLabel;
    label->setObjectName(QStringLiteral("Muted"));
    label->setWordWrap(true);
    label->setTextFormat(Qt::PlainText);
    label->setAccessibleName(accessibleName);
    return label;
}

}  // namespace

PolicyDialog::PolicyDialog(ViewContext& context, const QString& key, QWidget* parent)
    : QDialog(parent),
      context_(context),
      policy_(new QComboBox),
      hint_(muted(tr("What the policy decides"))),
      now_(new QLabel),
      editor_(new QStackedWidget),
      choice_(new QComboBox),
      number_(new QSpinBox),
      effect_(muted(tr("What the change would do"))),
      set_(new QPushButton(tr("Set\u2026"))) {
    setWindowTitle(tr("Policies of the job"));
    setObjectName(QStringLiteral("PolicyDialog"));
    setAttribute(Qt::WA_DeleteOnClose);
    setMinimumWidth(480);
    policy_->setAccessibleName(tr("Policy"));
    choice_->setAccessibleName(tr("New value"));
    number_->setAccessibleName(tr("New value"));
    number_->setRange(0, kMost);
    now_->setAccessibleName(tr("Value now"));
    now_->setFont(Theme::font(0, QFont::Medium));
    now_->setWordWrap(true);
    for (const PolicyField& f : policyFields()) policy_->addItem(f.title, toQt(f.key));
    editor_->addWidget(choice_);
    editor_->addWidget(number_);
    editor_->setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Fixed);
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(Space::kThree);
    form->setVerticalSpacing(Space::kOne);
    form->addRow(tr("Policy"), policy_);
    form->addRow(QString(), hint_);
    form->addRow(tr("Now"), now_);
    form->addRow(tr("New value"), editor_);
    auto* buttons = new QHBoxLayout;
    auto* close = new QPushButton(tr("Close"));
    set_->setProperty("role", "primary");
    set_->setDefault(true);
    buttons->addStretch();
    buttons->addWidget(set_);
    buttons->addWidget(close);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(Space::kThree, Space::kThree, Space::kThree, Space::kTwo);
    column->setSpacing(Space::kTwo);
    column->addLayout(form);
    column->addWidget(effect_);
    column->addStretch();
    column->addLayout(buttons);
    preflightTimer_.setSingleShot(true);
    connect(&preflightTimer_, &QTimer::timeout, this, &PolicyDialog::askPreflight);
    connect(policy_, &QComboBox::currentIndexChanged, this, &PolicyDialog::showPolicy);
    connect(choice_, &QComboBox::currentIndexChanged, this, &PolicyDialog::changed);
    connect(number_, &QSpinBox::valueChanged, this, &PolicyDialog::changed);
    connect(set_, &QPushButton::clicked, this, [this] { context_.commands.act(composed()); });
    connect(close, &QPushButton::clicked, this, &QDialog::reject);
    connect(&context_.feed, &RunFeed::updated, this, &PolicyDialog::showNow);
    policy_->setCurrentIndex(std::max(0, policy_->findData(key)));
    showPolicy();
}

const PolicyField& PolicyDialog::field() const {
    return policyFields()[static_cast<size_t>(std::max(policy_->currentIndex(), 0))];
}

model::Action PolicyDialog::composed() const {
    const PolicyField& f = field();
    model::Action action;
    action.kind = model::ActionKind::kSetPolicy;
    action.policy = f.key;
    if (!f.choices.empty()) {
        action.value = choice_->currentData().toString().toStdString();
        return action;
    }
    if (number_->value() < 0) {
        action.value = "auto";
        return action;
    }
    // A number that nobody changed stays as it is, whatever the unit rounds away.
    const auto shown = static_cast<uint64_t>(number_->value());
    action.value = policyValue(context_.feed.state().policies, f.key);
    if (action.value == "auto" || toQt(action.value).toULongLong() / f.scale != shown)
        action.value = std::to_string(shown * f.scale);
    return action;
}

void PolicyDialog::showPolicy() {
    const PolicyField& f = field();
    const QString now = toQt(policyValue(context_.feed.state().policies, f.key));
    hint_->setText(f.hint);
    choice_->clear();
    for (const PolicyField::Choice& choice : f.choices)
        choice_->addItem(choice.label, toQt(choice.value));
    choice_->setCurrentIndex(std::max(0, choice_->findData(now)));
    const bool mayBeAuto = !f.automatic.isEmpty();
    number_->setMinimum(mayBeAuto ? -1 : f.key == "min_replicas" ? 1 : 0);
    number_->setSuffix(f.unit.isEmpty() ? QString() : QChar(0x202F) + f.unit);
    number_->setSpecialValueText(mayBeAuto ? f.automatic : f.zero);
    number_->setValue(mayBeAuto && now == u"auto" ? -1
                                                  : static_cast<int>(now.toULongLong() / f.scale));
    editor_->setCurrentIndex(f.choices.empty() ? 1 : 0);
    setFocusProxy(editor_->currentWidget());
    showNow();
    changed();
}

void PolicyDialog::showNow() {
    const model::RunState& state = context_.feed.state();
    QString words = policyWords(state.policies, field());
    if (field().key == "parity_every_steps" && !state.policies.parityEverySteps && state.parityPace)
        words += QStringLiteral("; ") + toQt(model::paceText(*state.parityPace));
    now_->setText(words);
    const bool differs =
        composed().value != policyValue(context_.feed.state().policies, field().key);
    set_->setEnabled(differs && context_.session.status().canAct());
    if (!differs) effect_->setText(tr("That is what it is now."));
}

void PolicyDialog::changed() {
    ++asked_;  // earlier requests are obsolete
    effect_->clear();
    showNow();
    preflightTimer_.stop();
    if (set_->isEnabled()) preflightTimer_.start(kPreflightDelayMs);
}

void PolicyDialog::askPreflight() {
    context_.session.preflight(
        composed(), [this, guard = QPointer(this), asked = asked_](auto result) {
            if (!guard || asked != asked_) return;
            if (!result.ok()) return effect_->setText(inWords(result.failure()));
            effect_->setText(
                toQt(result.value().allowed ? result.value().effect : result.value().refusal));
        });
}

}  // namespace bulkhead::ui
