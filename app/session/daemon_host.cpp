// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/daemon_host.h"

namespace bulkhead::ui {

DaemonHost::~DaemonHost() {
    if (worker_.joinable()) worker_.join();
}

void DaemonHost::start(client::PrivateDaemonOptions options) {
    worker_ = std::jthread([this, options = std::move(options)]() mutable {
        auto result = std::make_shared<client::Result<std::unique_ptr<client::PrivateDaemon>>>(
            client::PrivateDaemon::create(std::move(options)));
        QMetaObject::invokeMethod(
            this,
            [this, result] {
                if (!result->ok()) return void(Q_EMIT failed(result->failure()));
                daemon_ = std::move(*result).value();
                Q_EMIT ready(QString::fromStdString(daemon_->target()));
            },
            Qt::QueuedConnection);
    });
}

QString DaemonHost::target() const {
    return daemon_ ? QString::fromStdString(daemon_->target()) : QString();
}

void DaemonHost::release() {
    if (daemon_) daemon_->release();
}

void DaemonHost::stop(std::function<void()> done) {
    if (!daemon_) return done();
    if (worker_.joinable()) worker_.join();
    worker_ =
        std::jthread([this, daemon = std::shared_ptr<client::PrivateDaemon>(std::move(daemon_)),
                      done = std::move(done)] {
            daemon->stop();
            QMetaObject::invokeMethod(this, done, Qt::QueuedConnection);
        });
}

}  // namespace bulkhead::ui
