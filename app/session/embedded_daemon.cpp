// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/embedded_daemon.h"

#include <unistd.h>

#include <QCoreApplication>
#include <QDir>
#include <QFile>
#include <QFileInfo>
#include <QProcess>

namespace bulkhead::ui {
namespace {

QString firstExisting(const QStringList& candidates) {
    for (const QString& path : candidates)
        if (QFileInfo::exists(path)) return QDir::cleanPath(path);
    return {};
}

}  // namespace

Installation Installation::find() {
    const QString here = QCoreApplication::applicationDirPath();
    Installation found;
    found.daemon = firstExisting({here + "/bulkheadd", here + "/../bin/bulkheadd"});
    // Installed, then in a build folder of the source tree, then from tests.
    found.demoJob = firstExisting({here + "/../share/bulkhead/jobs/demo.toml",
                                   here + "/../../resources/jobs/demo.toml",
                                   here + "/../resources/jobs/demo.toml"});
    return found;
}

EmbeddedDaemon::EmbeddedDaemon(QObject* parent) : QObject(parent) {}

EmbeddedDaemon::~EmbeddedDaemon() {
    if (!process_) return;
    process_->disconnect(this);
    if (released_) {
        // Its destructor would end the process.
        (void)process_.release();
        return;
    }
    process_->terminate();
    process_->waitForFinished(5000);
}

void EmbeddedDaemon::start(const QString& program, const QStringList& arguments,
                           const QString& logFile) {
    process_ = std::make_unique<QProcess>();
    logFile_ = logFile;
    released_ = false;
    process_->setStandardOutputFile(logFile, QIODevice::Truncate);
    process_->setStandardErrorFile(logFile, QIODevice::Append);
    process_->setStandardInputFile(QProcess::nullDevice());
    process_->setChildProcessModifier([] { ::setsid(); });
    connect(process_.get(), &QProcess::errorOccurred, this, [this](QProcess::ProcessError error) {
        if (error == QProcess::FailedToStart) Q_EMIT failed(process_->errorString());
    });
    connect(process_.get(), &QProcess::finished, this, [this](int code, QProcess::ExitStatus) {
        if (code != 0) {
            const QString words = lastWords();
            Q_EMIT failed(words.isEmpty() ? tr("it ended with code %1").arg(code) : words);
        }
        Q_EMIT ended();
    });
    process_->start(program, arguments);
}

bool EmbeddedDaemon::running() const {
    return process_ && process_->state() != QProcess::NotRunning;
}

void EmbeddedDaemon::release() { released_ = true; }

QString EmbeddedDaemon::lastWords() const {
    QFile file(logFile_);
    if (!file.open(QIODevice::ReadOnly)) return {};
    constexpr qint64 kTail = 4096;
    if (file.size() > kTail) file.seek(file.size() - kTail);
    const QStringList lines =
        QString::fromUtf8(file.readAll()).trimmed().split(u'\n', Qt::SkipEmptyParts);
    return lines.isEmpty() ? QString() : lines.last().trimmed();
}

}  // namespace bulkhead::ui
