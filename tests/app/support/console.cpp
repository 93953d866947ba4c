// SPDX-License-Identifier: GPL-3.0-only
#include "tests/app/support/console.h"

#include <QCoreApplication>
#include <QDeadlineTimer>
#include <QThread>

namespace bulkhead::test {

Console::Console(int steps) {
    settings = std::make_unique<QSettings>(folder.filePath("console.ini"), QSettings::IniFormat);
    session = std::make_unique<ui::Session>(feed, [this](client::Options options) {
        log->options = options;
        return client::Result<std::unique_ptr<client::Client>>(std::make_unique<FakeClient>(log));
    });
    window = std::make_unique<ui::MainWindow>(
        ui::MainWindow::Parts{feed, cursor, *session, actions, confirmer, *settings});
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

void Console::settle() {
    const QDeadlineTimer limit(5000);
    while (log->state && !feed.hasRun() && !limit.hasExpired())
        QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents, 50);
    for (int i = 0; i < 10; ++i) QCoreApplication::processEvents();
}

}  // namespace bulkhead::test
