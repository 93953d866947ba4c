// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QSettings>
#include <QString>
#include <QVector>

namespace bulkhead::ui {

/// Targets opened before, newest first. Addresses and paths only: no token is ever stored, only
/// the path of its file. Thread: the GUI's.
struct Recent {
    enum class Kind { kAddress, kFile };
    Kind kind = Kind::kAddress;
    QString target;  ///< "unix:/path", "host:port" or the path of a run file
    QString tokenFile;
    QString lastStatus;  ///< result of the last time
    QString certs = {};  ///< folder of certificates
    bool operator==(const Recent&) const = default;
};

class Recents {
  public:
    static constexpr int kMost = 12;
    explicit Recents(QSettings& settings) : settings_(settings) {}
    QVector<Recent> list() const;
    /// Puts it first; an older one of the same target goes.
    void remember(const Recent& recent);
    void setStatus(const QString& target, const QString& status);
    void forget(const QString& target);

  private:
    void store(const QVector<Recent>& list);
    QSettings& settings_;
};

}  // namespace bulkhead::ui
