// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/status_strip.h"

#include <QCoreApplication>
#include <QHBoxLayout>
#include <QLabel>
#include <QPainter>
#include <QPushButton>
#include <QVBoxLayout>
#include <algorithm>

#include "app/models/gpu_rows.h"
#include "app/models/units.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kMarkStep = 14;

QString colored(const QString& text, const QColor& color) {
    return QStringLiteral("<span style='color:%1'>%2</span>")
        .arg(color.name(), text.toHtmlEscaped());
}

}  // namespace

Explanation explain(const model::RunState& state) {
    const bool stands =
        state.phase != model::JobPhase::kTraining && state.phase != model::JobPhase::kFinished;
    if (stands && !state.explanation.empty())
        return {label(state.phase) + QStringLiteral(": ") + toQt(state.explanation),
                tone(state.phase)};
    const QString news = gpuNews(state);
    QStringList away;
    for (const model::ReplicaView& r : state.replicas) {
        if (r.state == model::ReplicaState::kTraining) continue;
        QString words = replicaName(r.replica) + u' ' + label(r.state).toLower();
        if (r.catchUp && r.catchUp->bytesTotal > 0 && r.state == model::ReplicaState::kFetching)
            words +=
                QStringLiteral(" %1 %").arg(100 * r.catchUp->bytesDone / r.catchUp->bytesTotal);
        if (!r.why.empty() && r.state != model::ReplicaState::kFetching)
            words += QStringLiteral(" (%1)").arg(toQt(r.why));
        away << words;
    }
    if (!away.isEmpty()) {
        QString words = away.join(QStringLiteral(", "));
        if (state.quorum && !state.quorum->explanation.empty())
            words += QStringLiteral(".  ") + QCoreApplication::translate("status", "Quorum: ") +
                     toQt(state.quorum->explanation);
        if (!news.isEmpty()) words += QStringLiteral(".  ") + news;
        return {words, Tone::kWarning};
    }
    if (state.finished)
        return {QCoreApplication::translate("status", "The run has ended: %1")
                    .arg(toQt(state.finished->why)),
                state.finished->ok ? Tone::kMuted : Tone::kBad};
    if (!news.isEmpty()) return {news, Tone::kBad};
    if (state.replicas.empty())
        return {QCoreApplication::translate("status", "No replica has reported yet."),
                Tone::kMuted};
    return {QCoreApplication::translate("status", "All %1 replicas contribute; nothing waits.")
                .arg(state.replicas.size()),
            Tone::kMuted};
}

ReplicaMarks::ReplicaMarks(const RunFeed& feed, QWidget* parent) : QWidget(parent), feed_(feed) {
    setAccessibleName(tr("State of every replica"));
}

QSize ReplicaMarks::sizeHint() const {
    const auto count = std::min<size_t>(feed_.state().replicas.size(), 16);
    return {std::max(static_cast<int>(count) * kMarkStep, 8), 20};
}

void ReplicaMarks::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    double x = kMarkStep / 2.0;
    for (const model::ReplicaView& r : feed_.state().replicas) {
        paintMark(painter, {x, height() / 2.0}, tone(r.state), theme().tokens().of(r.state));
        x += kMarkStep;
        if (x > width()) break;
    }
}

StatusStrip::StatusStrip(const RunFeed& feed, const Session& session, QWidget* parent)
    : QWidget(parent),
      feed_(feed),
      session_(session),
      link_(new QLabel),
      detail_(new QLabel),
      retry_(new QPushButton(tr("Retry now"))),
      plan_(new QPushButton(tr("A plan waits"))),
      explanation_(new QLabel),
      message_(new QLabel),
      marks_(new ReplicaMarks(feed)) {
    setObjectName(QStringLiteral("StatusStrip"));
    setAccessibleName(tr("Status"));
    setAttribute(Qt::WA_StyledBackground);
    auto* row = new QHBoxLayout;
    row->setContentsMargins(Space::kTwo, Space::kOne, Space::kTwo, Space::kHalf);
    row->setSpacing(Space::kThree);
    row->addWidget(makeTile(kPhase, tr("Job")));
    row->addWidget(makeTile(kStep, tr("Step")));
    row->addWidget(makeTile(kContributors, tr("Contributors"), marks_));
    row->addWidget(makeTile(kEffective, tr("Effective training time")));
    row->addWidget(makeTile(kLoss, tr("Loss")));
    row->addWidget(makeTile(kTokens, tr("Tokens")));
    row->addStretch();
    auto* side = new QVBoxLayout;
    side->setSpacing(2);
    link_->setAlignment(Qt::AlignRight);
    link_->setAccessibleName(tr("Connection"));
    link_->setFont(Theme::font(0, QFont::Medium));
    detail_->setAlignment(Qt::AlignRight);
    detail_->setObjectName(QStringLiteral("Muted"));
    detail_->setFont(Theme::font(-1));
    side->addWidget(link_);
    side->addWidget(detail_);
    row->addLayout(side);
    retry_->setAccessibleName(tr("Retry the connection now"));
    retry_->hide();
    plan_->setObjectName(QStringLiteral("News"));
    plan_->setFixedHeight(explanation_->sizeHint().height() + 4);
    plan_->setAccessibleName(tr("Look at the plan that waits"));
    plan_->setToolTip(tr("Routing has drifted and the backend proposed a plan; see Placement"));
    plan_->hide();
    row->addWidget(retry_);
    auto* below = new QHBoxLayout;
    below->setContentsMargins(Space::kTwo, 0, Space::kTwo, Space::kOne);
    below->setSpacing(Space::kThree);
    explanation_->setTextFormat(Qt::PlainText);
    explanation_->setAccessibleName(tr("Why anything waits"));
    explanation_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
    message_->setTextFormat(Qt::RichText);
    message_->setAccessibleName(tr("Last message"));
    message_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    below->addWidget(explanation_, 1);
    below->addWidget(message_);
    below->addWidget(plan_);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addLayout(row);
    column->addLayout(below);
    connect(retry_, &QPushButton::clicked, this, &StatusStrip::retryWanted);
    connect(plan_, &QPushButton::clicked, this, &StatusStrip::planWanted);
    connect(&feed_, &RunFeed::updated, this, &StatusStrip::refresh);
    connect(&session_, &Session::statusChanged, this, &StatusStrip::refreshLink);
    connect(&theme(), &Theme::changed, this, [this] {
        drawn_ = {};
        refresh();
        refreshLink();
    });
    refresh();
    refreshLink();
}

QWidget* StatusStrip::makeTile(Tile tile, const QString& caption, QWidget* extra) {
    auto* box = new QWidget;
    auto* column = new QVBoxLayout(box);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(2);
    auto* name = new QLabel(caption);
    name->setObjectName(QStringLiteral("Muted"));
    name->setFont(Theme::font(-1));
    auto* figure = new QLabel(noFigure());
    figure->setFont(Theme::font(4, QFont::Medium));
    figure->setAccessibleName(caption);
    figures_[tile] = figure;
    auto* line = new QHBoxLayout;
    line->setSpacing(Space::kOne);
    line->addWidget(figure);
    if (extra != nullptr) line->addWidget(extra);
    line->addStretch();
    column->addWidget(name);
    column->addLayout(line);
    return box;
}

void StatusStrip::refresh() {
    const Revisions& now = feed_.revisions();
    if (now.status == drawn_.status && now.fleet == drawn_.fleet) return;
    drawn_ = now;
    const model::RunState& s = feed_.state();
    const Tokens& t = theme().tokens();
    refreshExplanation();
    plan_->setVisible(model::openProposal(s) != nullptr);
    if (!feed_.hasRun()) {
        for (QLabel* figure : figures_) figure->setText(noFigure());
        marks_->updateGeometry();
        return marks_->update();
    }
    const auto here = static_cast<uint32_t>(std::count_if(
        s.replicas.begin(), s.replicas.end(),
        [](const model::ReplicaView& r) { return r.state == model::ReplicaState::kTraining; }));
    const auto all = std::max<uint32_t>(s.spec.replicas, static_cast<uint32_t>(s.replicas.size()));
    figures_[kPhase]->setText(colored(label(s.phase), t.of(tone(s.phase))));
    figures_[kStep]->setText(s.lastCommit ? formatCount(s.lastCommit->record.step) : noFigure());
    figures_[kContributors]->setText(
        colored(QStringLiteral("%1/%2").arg(here).arg(all), here < all ? t.warning : t.text));
    figures_[kEffective]->setText(s.lastCommit ? formatShare(s.effectiveTime) : noFigure());
    figures_[kLoss]->setText(s.lastCommit ? formatNumber(s.lastCommit->loss, 3) : noFigure());
    figures_[kTokens]->setText(s.lastCommit ? formatRate(s.lastCommit->tokensPerSecond)
                                            : noFigure());
    marks_->updateGeometry();
    marks_->update();
}

void StatusStrip::refreshExplanation() {
    const Explanation now = feed_.hasRun() ? explain(feed_.state()) : Explanation{};
    explanation_->setText(now.words);
    explanation_->setToolTip(now.words);
    QPalette palette = explanation_->palette();
    palette.setColor(QPalette::WindowText, theme().tokens().of(now.tone));
    explanation_->setPalette(palette);
}

QString StatusStrip::explanation() const {
    return explanation_->text();
}

void StatusStrip::refreshLink() {
    const SessionStatus& s = session_.status();
    const Tokens& t = theme().tokens();
    QString words;
    QString detail = s.target;
    Tone tone = Tone::kMuted;
    switch (s.link) {
        case Link::kNone:
            words = tr("Not connected");
            break;
        case Link::kStarting:
            words = tr("Starting\u2026");
            tone = Tone::kBusy;
            break;
        case Link::kConnecting:
            words = tr("Connecting\u2026");
            tone = Tone::kBusy;
            break;
        case Link::kLive:
            words = s.stale     ? tr("Stale: silent for %1").arg(formatMs(s.silentSeconds * 1000))
                    : s.replay  ? tr("Replay")
                    : s.offline ? tr("Run file")
                                : tr("Live");
            tone = s.stale ? Tone::kWarning : s.replay ? Tone::kNotice : Tone::kGood;
            break;
        case Link::kReconnecting:
            words =
                tr("Lost; next try in %1")
                    .arg(formatMs(1000 * s.secondsToNextAttempt(std::chrono::steady_clock::now())));
            tone = Tone::kWarning;
            break;
        case Link::kFailed:
            words = s.failure ? toQt(s.failure->title) : tr("Failed");
            tone = Tone::kBad;
            break;
    }
    if (s.failure && s.link != Link::kLive) detail = inWords(*s.failure);
    link_->setText(colored(QStringLiteral("\u25cf "), t.of(tone)) + words.toHtmlEscaped());
    detail_->setText(detail_->fontMetrics().elidedText(detail, Qt::ElideRight, 460));
    detail_->setToolTip(detail);
    retry_->setVisible(s.link == Link::kReconnecting);
}

void StatusStrip::say(const QString& words, Tone tone) {
    message_->setText(colored(message_->fontMetrics().elidedText(words, Qt::ElideRight, 640),
                              theme().tokens().of(tone)));
    message_->setToolTip(words);
}

}  // namespace bulkhead::ui
