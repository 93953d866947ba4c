// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/audit_view.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QTableView>

#include "app/models/units.h"
#include "app/views/job_commands.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kFetchMs = 2000;
constexpr int kTypingPauseMs = 150;
constexpr uint32_t kPage = 1000;

}  // namespace

AuditView::AuditView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("audit"), tr("Audit"), parent),
      table_(new QTableView),
      text_(new QLineEdit),
      least_(new QComboBox),
      count_(new QLabel) {
    filter_.setSourceModel(&model_);
    table_->setModel(&filter_);
    styleTable(table_, tr("Audit"));
    const int widths[] = {144, 88, 124, 136, 120, 80, 72};
    for (int i = 0; i < 7; ++i) table_->setColumnWidth(i, widths[i]);
    setBody(table_);
    addControls();
    fetchTimer_.setInterval(kFetchMs);
    connect(&fetchTimer_, &QTimer::timeout, this, &AuditView::fetch);
    fetchTimer_.start();
    connect(&context_.session, &Session::statusChanged, this, &AuditView::noteDaemon);
}

void AuditView::addControls() {
    text_->setPlaceholderText(tr("Filter"));
    text_->setClearButtonEnabled(true);
    text_->setAccessibleName(tr("Filter the audit by text"));
    text_->setFixedWidth(160);
    least_->setAccessibleName(tr("Results"));
    least_->addItems({tr("All results"), tr("Failed and refused"), tr("Refused only")});
    count_->setObjectName(QStringLiteral("Muted"));
    count_->setFont(Theme::font(-1));
    controls()->insertWidget(1, count_);
    QAction* check = context_.actions.add(
        QStringLiteral("audit.check"), tr("View"), tr("Verify the audit"),
        tr("Compute its chain of hashes anew: was an entry changed or taken out?"),
        QKeySequence(QStringLiteral("Ctrl+Alt+A")), [this] { this->check(); });
    addButton(check, tr("Verify"));
    controls()->addWidget(least_);
    controls()->addWidget(text_);
    debounce_.setSingleShot(true);
    debounce_.setInterval(kTypingPauseMs);
    connect(text_, &QLineEdit::textChanged, &debounce_, qOverload<>(&QTimer::start));
    connect(&debounce_, &QTimer::timeout, this, [this] {
        filter_.setText(text_->text());
        countRows();
    });
    connect(least_, &QComboBox::currentIndexChanged, this, [this](int i) {
        filter_.setLeast(static_cast<AuditModel::Result>(i));
        countRows();
    });
    noteDaemon();
}

/// A page of words takes the keyboard too: it is the current one.
QWidget* AuditView::focusTarget() {
    return hasContent() ? table_ : static_cast<QWidget*>(this);
}

void AuditView::refresh() {
    if (hasFocus()) table_->setFocus();
    countRows();
}

bool AuditView::mayRead() const {
    const SessionStatus& status = context_.session.status();
    return status.link == Link::kLive && !status.readOnly && status.server.role == "admin";
}

QString AuditView::emptyText() const {
    const SessionStatus& status = context_.session.status();
    if (status.link != Link::kLive) return {};
    if (status.readOnly)
        return emptyWords(tr("No audit here"),
                          tr("A run file has none: daemons that run jobs keep one."));
    if (!mayRead())
        return emptyWords(tr("The audit is for administrators"),
                          status.server.role.empty()
                              ? tr("It needs the role admin.")
                              : tr("It needs the role admin; %1 has the role %2. An administrator "
                                   "can give that role "
                                   "(bulkheadctl access).")
                                    .arg(toQt(status.server.principal), toQt(status.server.role)));
    if (failure_) return emptyWords(toQt(failure_->title), inWords(*failure_));
    return emptyWords(tr("Nothing in the audit yet"),
                      tr("Each change, refusal and sign-in appears here."));
}

void AuditView::noteDaemon() {
    const SessionStatus& status = context_.session.status();
    if (std::exchange(daemon_, status.target) != daemon_ ||
        (status.link == Link::kLive && !mayRead())) {
        model_.clear();
        failure_.reset();
        total_ = 0;
        countRows();
    }
    context_.actions.find(QStringLiteral("audit.check"))->setEnabled(mayRead());
    touch();
    if (model_.rowCount() == 0) fetch();
}

void AuditView::raised() {
    fetch();
}

void AuditView::fetch() {
    if (!canBeSeen() || !mayRead()) return;
    model::AuditQuery query;
    query.limit = kPage;
    query.newestFirst = model_.rowCount() == 0;
    if (!query.newestFirst) query.fromSeq = model_.newest() + 1;
    context_.session.readAudit(query, [this](auto page) { take(std::move(page)); });
}

void AuditView::take(client::Result<model::AuditPage> page) {
    failure_.reset();
    if (!page.ok()) {
        failure_ = page.failure();
        if (!failure_->retryable) model_.clear();
        return touch();
    }
    total_ = page.value().total;
    if (total_ < model_.newest()) model_.clear();  // it is another file
    model_.add(std::move(page).value().entries);
    touch();
}

void AuditView::check() {
    model::AuditQuery query;
    query.limit = 1;
    query.check = true;
    context_.session.readAudit(query, [this](auto page) {
        if (!page.ok()) return context_.commands.complain(page.failure());
        const model::AuditPage& all = page.value();
        if (all.brokenAt == 0)
            return context_.commands.tell(tr("%1 entries, the chain holds; last hash %2")
                                              .arg(formatCount(all.total), toQt(all.head)));
        context_.commands.complain(
            {client::FailureCode::kServer, tr("The audit").toStdString(),
             tr("The chain breaks at entry %1 of %2: it was changed, or entries are missing.")
                 .arg(formatCount(all.brokenAt), formatCount(all.total))
                 .toStdString(),
             tr("Look for the last hash that was noted elsewhere.").toStdString(), false});
    });
}

void AuditView::countRows() {
    const auto shown = formatCount(static_cast<uint64_t>(filter_.rowCount()));
    const auto rows = static_cast<uint64_t>(model_.rowCount());
    count_->setText(rows == 0        ? QString()
                    : rows >= total_ ? tr("%1 of %2").arg(shown, formatCount(rows))
                                     : tr("%1 of the newest %2 (%3 in all)")
                                           .arg(shown, formatCount(rows), formatCount(total_)));
}

}  // namespace bulkhead::ui
