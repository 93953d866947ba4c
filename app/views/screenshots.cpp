// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/screenshots.h"

#include <QDir>
#include <QPixmap>
#include <iostream>

#include "app/models/labels.h"
#include "app/views/main_window.h"

namespace bulkhead::ui {
namespace {

using std::chrono::steady_clock;

constexpr int kLookMs = 250;
constexpr int kPaintedMs = 400;
constexpr int kPatience = 4;  // times the seconds asked for
constexpr size_t kLeastSteps = 12;

}  // namespace

Screenshots::Screenshots(MainWindow& window, RunFeed& feed, Session& session, Options options)
    : QObject(&window),
      window_(window),
      feed_(feed),
      session_(session),
      options_(std::move(options)),
      narrator_(std::cout) {
    connect(&timer_, &QTimer::timeout, this, &Screenshots::look);
}

void Screenshots::start() {
    started_ = steady_clock::now();
    QDir().mkpath(options_.folder);
    timer_.start(kLookMs);
}

bool Screenshots::full() const {
    const model::RunState& s = feed_.state();
    return s.steps.size() >= kLeastSteps && !s.experts.latest.empty() && !s.ranks.empty();
}

void Screenshots::look() {
    if (feed_.hasRun()) narrator_.look(feed_.state());
    const double waited = std::chrono::duration<double>(steady_clock::now() - started_).count();
    const SessionStatus& status = session_.status();
    if (status.replay && status.position && status.position->paused && !status.position->atEnd) {
        // A run file stands at its beginning: its end has most to show.
        model::ReplayControl order;
        order.seekTimeNs = status.position->endNs;
        session_.controlReplay(order);
    }
    if (options_.killOne && status.embedded && !killed_ && full() &&
        waited > options_.seconds / 3.0 && feed_.state().incidents.empty()) {
        killed_ = true;
        model::FaultSpec fault;
        fault.kind = model::FaultKind::kKillReplica;
        fault.replica = static_cast<int32_t>(feed_.state().replicas.size()) / 2;
        session_.inject(fault, 0, [](auto) {});
    }
    const bool jobFailed = feed_.state().phase == model::JobPhase::kFailed && !status.replay;
    if (jobFailed) {
        timer_.stop();
        return void(Q_EMIT finished(false, toQt(feed_.state().explanation)));
    }
    const bool failed = status.link == Link::kFailed;
    const bool enough = full() && (waited >= options_.seconds || status.replay);
    if (!failed && !enough && waited < options_.seconds * kPatience) return;
    timer_.stop();
    if (!feed_.hasRun())
        return void(
            Q_EMIT finished(false, failed && status.failure
                                       ? inWords(*status.failure)
                                       : tr("no run appeared within %1 s").arg(waited, 0, 'f', 0)));
    nextPicture();
}

void Screenshots::nextPicture() {
    const auto& views = window_.layout().views();
    if (scheme_ >= options_.schemes.size())
        return void(
            Q_EMIT finished(true, tr("%1 pictures in %2").arg(saved_).arg(options_.folder)));
    const Scheme scheme = options_.schemes[scheme_];
    theme().setScheme(scheme);
    const QString name = view_ == 0 ? QStringLiteral("window") : views[view_ - 1]->id();
    if (view_ > 0) {
        if (window_.layout().isOnly()) window_.layout().toggleOnly(views[view_ - 1]);
        window_.layout().toggleOnly(views[view_ - 1]);
    }
    QTimer::singleShot(kPaintedMs, this, [this, name, scheme, &views] {
        const QString file =
            QStringLiteral("%1/%2-%3.png")
                .arg(options_.folder, name,
                     scheme == Scheme::kDark ? QStringLiteral("dark") : QStringLiteral("light"));
        if (window_.grab().save(file)) ++saved_;
        if (++view_ > views.size()) {
            view_ = 0;
            ++scheme_;
            if (window_.layout().isOnly()) window_.layout().toggleOnly(views.front());
        }
        nextPicture();
    });
}

}  // namespace bulkhead::ui
