// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QString>
#include <functional>
#include <memory>
#include <thread>

#include "backend/client/private_daemon.h"

namespace bulkhead::ui {

/// A private daemon, started and stopped on a thread of its own, because both block. Thread: the
/// GUI's.
class DaemonHost final : public QObject {
    Q_OBJECT
  public:
    explicit DaemonHost(QObject* parent = nullptr) : QObject(parent) {}
    /// Stops the daemon unless it was released; waits for it.
    ~DaemonHost() override;

    /// Precondition: called once. ready() or failed() follows.
    void start(client::PrivateDaemonOptions options);
    /// Its address; empty before ready().
    QString target() const;
    /// It goes on when the console ends.
    void release();
    /// Jobs write a checkpoint and end; `done` when the daemon is gone.
    void stop(std::function<void()> done);

  Q_SIGNALS:
    void ready(const QString& target);
    void failed(const bulkhead::client::Failure& failure);

  private:
    std::unique_ptr<client::PrivateDaemon> daemon_;
    std::jthread worker_;
};

}  // namespace bulkhead::ui
