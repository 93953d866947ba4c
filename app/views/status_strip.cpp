// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/status_strip.h"

#include <QCoreApplication>
#include <QDateTime>
#include <QHBoxLayout>
#include <QLabel>
#include <QPainter>
#include <QPushButton>
#include <QToolButton>
#include <QVBoxLayout>
#include <algorithm>
#include <chrono>

#include "app/models/gpu_rows.h"
#include "app/models/units.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"
#include "backend/model/incident_card.h"

namespace bulkhead::ui {
namespace {

constexpr int kMarkStep = 14;
constexpr int kMessageMs = 15'000;
constexpr int kBadMessageMs = 60'000;

QString colored(const QString& text, const QColor& color) {
    return QStringLiteral("<span style='color:%1'>%2</span>")
        .arg(color.name(), text.toHtmlEscaped());
}

/// A danger of the way to this daemon; empty: there is none.
QString linkWarning(const model::ServerInfo& server) {
    constexpr int64_t kDayNs = 86'400LL * 1'000'000'000;
    if (server.insecure) return QCoreApplication::translate("status", "Not encrypted");
    const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
    if (!server.certificateEndsSoon(now)) return {};
    const int64_t days = (server.certificateEndsNs - now) / kDayNs;
    return QCoreApplication::translate("status", "Its certificate ends in %n days", nullptr,
                                       static_cast<int>(std::max<int64_t>(days, 0)));
}

/// A run that is over: what it was, how it ended, what it cost.
QString summary(const model::RunState& s) {
    QString words = QCoreApplication::translate("status", "%1: %2 after %3")
                        .arg(toQt(s.spec.name), label(s.phase).toLower(),
                             formatMs(static_cast<double>(s.phaseSinceNs - s.startedNs) / 1e6));
    if (!s.finished->why.empty()) words += QStringLiteral(" (%1)").arg(toQt(s.finished->why));
    words += QCoreApplication::translate("status", ", %1 replicas of %2 shards; ")
                 .arg(s.spec.replicas)
                 .arg(s.spec.shards);
    if (s.counters.incidents == 0)
        return words + QCoreApplication::translate("status", "no incident");
    words += QCoreApplication::translate("status", "incidents: %1")
                 .arg(formatCount(s.counters.incidents));
    double lost = 0;
    for (size_t i = 0; i < s.incidents.size(); ++i) lost += s.incidents[i].replicaSeconds;
    if (s.counters.incidents > s.incidents.size()) return words;  // the first are not in the state
    return words + QCoreApplication::translate("status", ", which cost %1 replica-s")
                       .arg(formatNumber(lost, 1));
}

}  // namespace

Explanation explain(const model::RunState& state) {
    if (state.finished) return {summary(state), state.finished->ok ? Tone::kMuted : Tone::kBad};
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
      plan_(new QPushButton(tr("Plan ready for review"))),
      explanation_(new QLabel),
      problems_(new QPushButton),
      message_(new QLabel),
      history_(new QToolButton),
      expiry_(this),
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
    row->addWidget(makeTile(kLoss, tr("Loss, raw")));
    row->addWidget(makeTile(kTokens, tr("Throughput")));
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
    plan_->setObjectName(QStringLiteral("News"));
    plan_->setFixedHeight(explanation_->sizeHint().height() + 4);
    plan_->setAccessibleName(tr("Plan ready for review"));
    plan_->setToolTip(tr("Routing has drifted and the backend proposed a plan; see Placement"));
    plan_->hide();
    problems_->setObjectName(QStringLiteral("News"));
    problems_->setFixedHeight(explanation_->sizeHint().height() + 4);
    problems_->setAccessibleName(tr("What is wrong and what to do"));
    problems_->setToolTip(tr("What happened, when it is over, what it costs, what to do"));
    problems_->hide();
    history_->setText(tr("Messages"));
    history_->setAutoRaise(true);
    history_->setFont(Theme::font(-1));
    history_->setAccessibleName(tr("Messages so far"));
    history_->hide();
    expiry_.setObjectName(QStringLiteral("expiry"));
    expiry_.setSingleShot(true);
    auto* below = new QHBoxLayout;
    below->setContentsMargins(Space::kTwo, 0, Space::kTwo, Space::kOne);
    below->setSpacing(Space::kThree);
    explanation_->setTextFormat(Qt::PlainText);
    explanation_->setAccessibleName(tr("Why anything waits"));
    explanation_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
    message_->setTextFormat(Qt::RichText);
    message_->setAccessibleName(tr("Last message"));
    message_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    below->addWidget(problems_);
    below->addWidget(explanation_, 1);
    below->addWidget(message_);
    below->addWidget(history_);
    below->addWidget(plan_);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addLayout(row);
    column->addLayout(below);
    connect(plan_, &QPushButton::clicked, this, &StatusStrip::planWanted);
    connect(problems_, &QPushButton::clicked, this, &StatusStrip::incidentsWanted);
    connect(history_, &QToolButton::clicked, this, &StatusStrip::messagesWanted);
    connect(&expiry_, &QTimer::timeout, this, [this] {
        said_.clear();
        refreshMessage();
    });
    connect(&feed_, &RunFeed::updated, this, &StatusStrip::refresh);
    connect(&session_, &Session::statusChanged, this, &StatusStrip::refreshLink);
    connect(&theme(), &Theme::changed, this, [this] {
        drawn_ = {};
        refresh();
        refreshLink();
        refreshMessage();
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
    plan_->setVisible(model::openProposal(feed_.state()) != nullptr);
    const size_t problems = feed_.hasRun() ? model::openProblems(feed_.state()) : 0;
    problems_->setVisible(problems > 0);
    problems_->setText(problems == 1 ? tr("1 problem: what to do")
                                     : tr("%1 problems: what to do").arg(problems));
    refreshFigures();
}

/// Nothing is coloured, and no phase is said to be the present one, while nobody knows.
void StatusStrip::refreshFigures() {
    const model::RunState& s = feed_.state();
    const Tokens& t = theme().tokens();
    const bool unknown = session_.status().unknown;
    refreshExplanation();
    setColorless(marks_, unknown);
    marks_->updateGeometry();
    marks_->update();
    if (!feed_.hasRun()) {
        for (QLabel* figure : figures_) figure->setText(noFigure());
        return;
    }
    const auto here = static_cast<uint32_t>(std::count_if(
        s.replicas.begin(), s.replicas.end(),
        [](const model::ReplicaView& r) { return r.state == model::ReplicaState::kTraining; }));
    const auto all = std::max<uint32_t>(s.spec.replicas, static_cast<uint32_t>(s.replicas.size()));
    const auto say = [&](Tile tile, const QString& text, const QColor& color) {
        figures_[tile]->setText(colored(text, unknown ? t.muted : color));
    };
    const auto sayOfCommit = [&](Tile tile, const QString& text) {
        say(tile, s.lastCommit ? text : noFigure(), t.text);
    };
    if (unknown)
        figures_[kPhase]->setText(colored(tr("Unknown"), t.warning));
    else
        say(kPhase, label(s.phase), t.of(tone(s.phase)));
    say(kContributors, QStringLiteral("%1/%2").arg(here).arg(all), here < all ? t.warning : t.text);
    const model::StepCommitted last = s.lastCommit.value_or(model::StepCommitted{});
    sayOfCommit(kStep, formatCount(last.record.step));
    sayOfCommit(kEffective, formatShare(s.effectiveTime));
    sayOfCommit(kLoss, formatNumber(last.loss, 3));
    sayOfCommit(kTokens, formatTokenRate(last.tokensPerSecond));
}

void StatusStrip::refreshExplanation() {
    Explanation now = feed_.hasRun() ? explain(feed_.state()) : Explanation{};
    if (session_.status().unknown)
        now = {tr("%1 ago: %2. %3")
                   .arg(formatAge(session_.status().silentSeconds), label(feed_.state().phase),
                        now.words),
               Tone::kMuted};
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
            words = s.unknown   ? tr("Silent")
                    : s.replay  ? tr("Replay")
                    : s.offline ? tr("Run file")
                                : tr("Live");
            tone = s.unknown ? Tone::kWarning : s.replay ? Tone::kNotice : Tone::kGood;
            break;
        case Link::kReconnecting:
            words = tr("Lost");
            tone = Tone::kWarning;
            break;
        case Link::kFailed:
            words = s.failure ? toQt(s.failure->title) : tr("Failed");
            tone = Tone::kBad;
            break;
    }
    if (s.failure && s.link == Link::kFailed) detail = inWords(*s.failure);
    QString warning;
    if (s.link == Link::kLive && !s.offline) {
        // Over the socket of this machine everybody is its owner.
        if (!s.server.principal.empty() && !s.target.startsWith(QStringLiteral("unix:")) &&
            !s.embedded)
            detail += tr(", as %1 (%2)").arg(toQt(s.server.principal), toQt(s.server.role));
        warning = linkWarning(s.server);
    }
    link_->setText(colored(QStringLiteral("\u25cf "), t.of(tone)) + words.toHtmlEscaped() +
                   (warning.isEmpty() ? QString()
                                      : QStringLiteral("  ") + colored(warning, t.of(Tone::kBad))));
    detail_->setText(detail_->fontMetrics().elidedText(detail, Qt::ElideRight, 460));
    detail_->setToolTip(detail);
    refreshFigures();
}

void StatusStrip::say(const QString& words, Tone tone) {
    log_.add(QDateTime::currentMSecsSinceEpoch() * 1'000'000, words, tone);
    said_ = words;
    saidTone_ = tone;
    expiry_.start(tone == Tone::kBad ? kBadMessageMs : kMessageMs);
    refreshMessage();
}

void StatusStrip::refreshMessage() {
    history_->setVisible(log_.rowCount() > 0);
    message_->setVisible(!said_.isEmpty());
    message_->setText(colored(message_->fontMetrics().elidedText(said_, Qt::ElideRight, 640),
                              theme().tokens().of(saidTone_)));
    message_->setToolTip(said_);
}

LinkBanner::LinkBanner(const Session& session, QWidget* parent)
    : QFrame(parent),
      session_(session),
      headline_(new QLabel),
      words_(new QLabel),
      retry_(new QPushButton(tr("Retry now"))) {
    setObjectName(QStringLiteral("LinkBanner"));
    setAttribute(Qt::WA_StyledBackground);
    setAccessibleName(tr("The state of the job is unknown"));
    headline_->setFont(Theme::font(1, QFont::Medium));
    headline_->setAccessibleName(tr("Since when nothing is known"));
    words_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
    words_->setAccessibleName(tr("Why, and what to do"));
    retry_->setAccessibleName(tr("Retry the connection now"));
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(Space::kTwo, Space::kOne, Space::kTwo, Space::kOne);
    row->setSpacing(Space::kTwo);
    row->addWidget(headline_);
    row->addWidget(words_, 1);
    row->addWidget(retry_);
    connect(retry_, &QPushButton::clicked, this, &LinkBanner::retryWanted);
    connect(&session_, &Session::statusChanged, this, &LinkBanner::refresh);
    refresh();
}

void LinkBanner::refresh() {
    const SessionStatus& s = session_.status();
    const bool again = s.link == Link::kReconnecting;
    setVisible(s.unknown || again);
    retry_->setVisible(again);
    if (!s.unknown && !again) return;
    headline_->setText(s.unknown
                           ? tr("State unknown, last seen %1 ago").arg(formatAge(s.silentSeconds))
                           : tr("Connection lost"));
    QString words = s.link == Link::kLive ? tr("The connection stands, but nothing comes over it.")
                    : s.failure           ? inWords(*s.failure)
                                          : QString();
    if (again)
        words +=
            u' ' + tr("Next try in %1.")
                       .arg(formatAge(s.secondsToNextAttempt(std::chrono::steady_clock::now())));
    if (s.unknown) words += u' ' + tr("Everything below is as it was then.");
    words_->setText(words);
    words_->setToolTip(words);
}

}  // namespace bulkhead::ui
