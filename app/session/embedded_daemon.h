// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QString>
#include <QStringList>
#include <memory>

class QProcess;

namespace bulkhead::ui {

/// Where the programs and files that belong to this console are: beside it, or in its source tree.
struct Installation {
    QString daemon;   ///< path of bulkheadd; empty when it is not there
    QString demoJob;  ///< path of demo.toml; empty when it is not there
    static Installation find();
};

/// A private bulkheadd. It runs in a session of its own and writes to a log file, so that it can
/// outlive the console when the operator says so. Thread: the GUI's.
class EmbeddedDaemon final : public QObject {
    Q_OBJECT
  public:
    explicit EmbeddedDaemon(QObject* parent = nullptr);
    /// Ends the process unless release() was called: SIGTERM, which it takes as "stop in order".
    ~EmbeddedDaemon() override;

    /// Starts `program`; failed() follows when it cannot be started or ends by itself.
    void start(const QString& program, const QStringList& arguments, const QString& logFile);
    bool running() const;
    /// It goes on when the console ends.
    void release();
    /// Last lines of its log.
    QString lastWords() const;

  Q_SIGNALS:
    void failed(const QString& cause);
    void ended();

  private:
    std::unique_ptr<QProcess> process_;
    QString logFile_;
    bool released_ = false;
};

}  // namespace bulkhead::ui
