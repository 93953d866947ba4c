// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/run_opening.h"

#include <QCoreApplication>
#include <QFileInfo>
#include <utility>

#include "app/models/labels.h"

namespace bulkhead::ui {
namespace {

/// Does it on the GUI thread, unless whoever wants it is gone by then.
template <class F>
void later(std::weak_ptr<bool> alive, F deed) {
    QMetaObject::invokeMethod(
        QCoreApplication::instance(),
        [alive = std::move(alive), deed = std::move(deed)]() mutable {
            if (!alive.expired()) deed();
        },
        Qt::QueuedConnection);
}

void closeReplay(client::Client& client, const std::string& replay) {
    client.closeReplay(replay, [](client::Result<client::Done>) {});
}

}  // namespace

RunOpening::RunOpening(std::shared_ptr<client::Client> client, std::string run, Told told)
    : client_(std::move(client)), told_(std::move(told)) {
    opened_.run = std::move(run);
    // A replay that is opened too late is closed again.
    client_->openReplay(
        opened_.run, [this, alive = std::weak_ptr(alive_),
                      client = std::weak_ptr(client_)](client::Result<std::string> result) {
            auto shared = std::make_shared<client::Result<std::string>>(std::move(result));
            QMetaObject::invokeMethod(
                QCoreApplication::instance(),
                [this, alive, client, shared] {
                    if (alive.expired()) {
                        const auto still = client.lock();
                        if (still && shared->ok()) closeReplay(*still, shared->value());
                        return;
                    }
                    if (!shared->ok()) return fail(shared->failure());
                    opened_.replay = std::move(*shared).value();
                    watch();
                    seekEnd();
                },
                Qt::QueuedConnection);
        });
}

RunOpening::~RunOpening() {
    if (!opened_.replay.empty()) closeReplay(*client_, opened_.replay);
}

template <class T>
client::Reply<T> RunOpening::here(std::function<void(client::Result<T>)> answer) {
    return [alive = std::weak_ptr(alive_), answer = std::move(answer)](client::Result<T> result) {
        auto shared = std::make_shared<client::Result<T>>(std::move(result));
        later(alive, [answer, shared] { answer(std::move(*shared)); });
    };
}

void RunOpening::watch() {
    const auto box = std::make_shared<Mailbox>(
        [this, alive = std::weak_ptr(alive_)] { later(alive, [this] { deliver(); }); });
    box_ = box;
    client::WatchHandlers handlers;
    handlers.onSnapshot = [box](client::StatePtr state) { box->putSnapshot(std::move(state)); };
    handlers.onPosition = [box](model::ReplayPosition p) { box->putPosition(p); };
    handlers.onDisconnected = [box](client::Failure failure, client::SteadyTime next) {
        box->putLost(std::move(failure), next);
    };
    watch_ = client_->watch({{}, opened_.replay}, std::move(handlers));
}

void RunOpening::seekEnd() {
    model::ReplayControl toEnd;
    toEnd.seekTimeNs = INT64_MAX;
    toEnd.paused = true;
    client_->controlReplay(opened_.replay, toEnd, here<model::ReplayPosition>([this](auto result) {
                               if (!result.ok()) return fail(result.failure());
                               opened_.position = result.value();
                               atEnd_ = true;
                               finish();
                           }));
}

void RunOpening::deliver() {
    Delivery delivery = box_->take();
    if (delivery.lost && !delivery.lost->failure.retryable) return fail(delivery.lost->failure);
    if (delivery.snapshot) opened_.state = std::move(delivery.snapshot);
    if (delivery.position) told_.progressed(delivery.position->loading);
    finish();
}

/// The state at the end may come before the word that the end is reached, or after it.
void RunOpening::finish() {
    if (!atEnd_ || !opened_.state || opened_.state->seq < opened_.position.seq) return;
    watch_.reset();
    const auto told = std::move(told_.opened);
    told(std::exchange(opened_, {}));
}

void RunOpening::fail(const client::Failure& failure) {
    const auto told = std::move(told_.failed);
    told(client::Failure(failure));
}

FileOpening::FileOpening(const QString& path, OpenClient openClient, Told told)
    : openClient_(std::move(openClient)), told_(std::move(told)) {
    opened_.daemon = std::make_unique<DaemonHost>();
    DaemonHost* daemon = opened_.daemon.get();
    QObject::connect(daemon, &DaemonHost::failed, daemon,
                     [this, alive = std::weak_ptr(alive_)](const client::Failure& failure) {
                         starting_ = false;
                         later(alive, [this, failure] { fail(failure); });
                     });
    QObject::connect(daemon, &DaemonHost::ready, daemon, [this](const QString& target) {
        starting_ = false;
        attach(target);
    });
    client::PrivateDaemonOptions options;
    options.runFile = QFileInfo(path).absoluteFilePath().toStdString();
    options.readOnly = true;
    daemon->start(std::move(options));
}

/// Starting a daemon blocks its thread: one that nobody wants any more ends when it has started.
FileOpening::~FileOpening() {
    if (!starting_) return;
    DaemonHost* host = opened_.daemon.release();
    host->disconnect();
    QObject::connect(host, &DaemonHost::ready, host, &QObject::deleteLater);
    QObject::connect(host, &DaemonHost::failed, host, &QObject::deleteLater);
}

void FileOpening::attach(const QString& target) {
    opened_.options.target = target.toStdString();
    auto opened = openClient_(opened_.options);
    if (!opened.ok()) return later(alive_, [this, failure = opened.failure()] { fail(failure); });
    opened_.client = std::move(opened).value();
    opened_.client->listRuns(
        {}, [this, alive = std::weak_ptr(alive_)](client::Result<std::vector<model::RunInfo>> r) {
            auto shared = std::make_shared<decltype(r)>(std::move(r));
            later(alive, [this, shared] {
                if (!shared->ok()) return fail(shared->failure());
                read(std::move(*shared).value());
            });
        });
}

void FileOpening::read(std::vector<model::RunInfo> runs) {
    if (runs.empty()) return finish(std::nullopt);
    run_ = std::make_unique<RunOpening>(
        opened_.client, runs.front().id,
        RunOpening::Told{told_.progressed,
                         [this](RunOpening::Opened run) { finish(std::move(run)); },
                         [this](const client::Failure& failure) { fail(failure); }});
}

void FileOpening::finish(std::optional<RunOpening::Opened> run) {
    opened_.run = std::move(run);
    const auto told = std::move(told_.opened);
    told(std::exchange(opened_, {}));
}

void FileOpening::fail(const client::Failure& failure) {
    const auto told = std::move(told_.failed);
    told(client::Failure(failure));
}

}  // namespace bulkhead::ui
