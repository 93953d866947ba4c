// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/view.h"

#include <QHBoxLayout>
#include <QLabel>
#include <QStackedLayout>
#include <QToolButton>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kHeaderHeight = 40;

/// A dock asks its title bar for its size hint and nothing else, as the least it may have.
class HeaderStrip final : public QWidget {
  public:
    using QWidget::QWidget;
    QSize sizeHint() const override { return minimumSizeHint(); }
    QSize minimumSizeHint() const override {
        return {QWidget::minimumSizeHint().width(), kHeaderHeight};
    }
};

}  // namespace

QString emptyWords(const QString& headline, const QString& advice) {
    return QStringLiteral("<p style='font-size:large'>%1</p><p>%2</p>")
        .arg(headline.toHtmlEscaped(), advice.toHtmlEscaped());
}

View::View(ViewContext& context, const QString& id, const QString& title, QWidget* parent)
    : QWidget(parent),
      context_(context),
      id_(id),
      title_(title),
      header_(new HeaderStrip(this)),
      controls_(new QHBoxLayout(header_)),
      name_(new QLabel(title)),
      stack_(new QStackedLayout(this)),
      empty_(new QLabel(this)) {
    setObjectName(id);
    setAccessibleName(title);
    setAutoFillBackground(true);
    setBackgroundRole(QPalette::Base);
    header_->setObjectName(QStringLiteral("ViewHeader"));
    header_->setAttribute(Qt::WA_StyledBackground);
    controls_->setContentsMargins(Space::kTwo, 0, Space::kOne, 0);
    controls_->setSpacing(Space::kOne);
    name_->setFont(Theme::font(1, QFont::Medium));
    controls_->addWidget(name_);
    controls_->addStretch();
    empty_->setObjectName(QStringLiteral("Muted"));
    empty_->setAlignment(Qt::AlignCenter);
    empty_->setWordWrap(true);
    empty_->setMargin(Space::kThree);
    stack_->setContentsMargins(0, 0, 0, 0);
    stack_->addWidget(empty_);
    sayWhyEmpty();
    connect(&context_.session, &Session::statusChanged, this, &View::noteStatus);
    connect(&context_.feed, &RunFeed::updated, this, &View::touch);
}

void View::noteStatus() {
    if (canBeSeen() && stack_->currentIndex() == 0) sayWhyEmpty();
    for (int i = 1; i < stack_->count(); ++i)
        setColorless(stack_->widget(i), isOfNow() && context_.session.status().unknown);
}

void View::setTitleShown(bool shown) {
    name_->setVisible(shown);
}

QToolButton* View::addButton(QAction* action, const QString& face) {
    auto* button = new QToolButton;
    button->setDefaultAction(action);
    button->setText(face);
    button->setAccessibleName(action->text());
    // A changed action would put its own, longer text back.
    connect(action, &QAction::changed, button, [button, face] { button->setText(face); });
    controls_->addWidget(button);
    return button;
}

void View::setBody(QWidget* body) {
    stack_->addWidget(body);
}

void View::setEmptyText(const QString& headline, const QString& advice) {
    emptyText_ = emptyWords(headline, advice);
}

void View::sayWhyEmpty() {
    const SessionStatus& status = context_.session.status();
    if (status.opening && !context_.feed.hasRun())
        return empty_->setText(emptyWords(
            tr("Reading %1").arg(status.opening->name),
            status.opening->share ? tr("%1 of its events are read. The run appears at its end.")
                                        .arg(formatShare(*status.opening->share))
                                  : tr("The run appears at its end.")));
    if (const QString words = emptyText();
        (context_.feed.hasRun() || !isOfRun()) && !words.isEmpty())
        return empty_->setText(words);
    switch (status.link) {
        case Link::kFailed:
        case Link::kReconnecting:
            if (status.failure)
                return empty_->setText(
                    emptyWords(toQt(status.failure->title), inWords(*status.failure)));
            break;
        case Link::kStarting:
        case Link::kConnecting:
            return empty_->setText(emptyWords(tr("Starting %1").arg(status.target),
                                              tr("The run appears here as soon as it begins.")));
        case Link::kLive:
            return empty_->setText(
                emptyWords(tr("No job runs here"),
                           tr("Start one with bulkheadctl, or replay a run from Runs.")));
        case Link::kNone:
            break;
    }
    empty_->setText(emptyWords(tr("No run on screen"),
                               tr("Start the demo, attach to a daemon, or drop a run file here.")));
}

void View::touch() {
    dirty_ = true;
    if (!canBeSeen()) return;
    dirty_ = false;
    const bool content = hasContent();
    const int page = content && stack_->count() > 1 ? 1 : 0;
    const bool appears = page == 1 && stack_->currentIndex() == 0;
    stack_->setCurrentIndex(page);
    // The first thing shown takes the keyboard over from the buttons above it.
    const QWidget* focus = window()->focusWidget();
    if (appears && (focus == nullptr || header_->isAncestorOf(focus))) focusTarget()->setFocus();
    if (content)
        refresh();
    else
        sayWhyEmpty();
}

void View::setInFront(bool inFront) {
    inFront_ = inFront;
    if (!inFront) return;
    raised();
    if (dirty_) touch();
}

void View::showEvent(QShowEvent* event) {
    QWidget::showEvent(event);
    if (dirty_) touch();
}

}  // namespace bulkhead::ui
