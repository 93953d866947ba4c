// SPDX-License-Identifier: GPL-3.0-only
#include "tests/app/support/console.h"

#include <gtest/gtest.h>

#include <QCoreApplication>
#include <QDeadlineTimer>
#include <QLabel>
#include <QTest>
#include <QThread>

namespace bulkhead::test {

Console::Console(int steps, ui::Session::OpenClient openClient, const Console* settingsOf,
                 model::Prices prices) {
    settings = settingsOf ? settingsOf->settings
                          : std::make_shared<QSettings>(folder.filePath("console.ini"),
                                                        QSettings::IniFormat);
    if (!openClient)
        openClient = [this](client::Options options) {
            log->options = options;
            return client::Result<std::unique_ptr<client::Client>>(
                std::make_unique<FakeClient>(log));
        };
    session = std::make_unique<ui::Session>(feed, std::move(openClient));
    window = std::make_unique<ui::MainWindow>(
        ui::MainWindow::Parts{feed, cursor, *session, actions, confirmer, *settings, prices});
    window->show();
    if (steps > 0) goLive(steps);
}

Console::~Console() {
    window.reset();
    session.reset();
}

void Console::goLive(int steps) {
    session->attach(QStringLiteral("unix:/tmp/fake.sock"));
    log->history = run.events(steps);
    auto state = std::make_shared<model::RunState>();
    for (const model::Event& e : log->history) model::apply(*state, e);
    FakeClient::goLive(*log, state);
    settle();
}

void Console::send(std::vector<model::Event> events) {
    const uint64_t last = events.empty() ? 0 : events.back().seq;
    log->run.onEvents(std::move(events));
    // The session takes deliveries at most ten times a second.
    const QDeadlineTimer limit(5000);
    while (feed.state().seq < last && !limit.hasExpired())
        QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents, 50);
}

void Console::press(const char* keys) {
    // Shortcuts are the active window's.
    window->activateWindow();
    EXPECT_TRUE(QTest::qWaitForWindowActive(window.get()));
    QTest::keySequence(window.get(), QKeySequence(QString::fromLatin1(keys)));
    for (int i = 0; i < 5; ++i) QCoreApplication::processEvents();
}

bool Console::says(const QString& words) const {
    for (const QLabel* label : window->findChildren<QLabel*>())
        if (label->isVisible() && label->text().contains(words)) return true;
    return false;
}

QWidget* Console::named(const QString& accessibleName, QWidget* within) const {
    for (QWidget* w : (within ? within : window.get())->findChildren<QWidget*>())
        if (w->isVisible() && w->accessibleName() == accessibleName) return w;
    return nullptr;
}

void Console::settle() {
    const QDeadlineTimer limit(5000);
    while (log->state && !feed.hasRun() && !limit.hasExpired())
        QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents, 50);
    for (int i = 0; i < 10; ++i) QCoreApplication::processEvents();
}

}  // namespace bulkhead::test
