// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QSettings>
#include <QTemporaryDir>
#include <memory>
#include <vector>

#include "app/views/main_window.h"
#include "app/widgets/theme.h"
#include "tests/app/support/fake_client.h"
#include "tests/app/support/sample_run.h"

namespace bulkhead::test {

/// Answers every question as the test said, and remembers what was asked.
class ScriptedConfirmer final : public ui::Confirmer {
  public:
    int answer = kCancelled;
    std::vector<ui::ConfirmRequest> asked;
    void ask(QWidget*, const ui::ConfirmRequest& request, std::function<void(int)> reply) override {
        asked.push_back(request);
        reply(answer);
    }
};

/// The real window on a daemon in memory, settings in a folder of its own.
struct Console {
    /// On a daemon in memory unless `openClient` opens another; `settingsOf`: as they were left
    /// there.
    explicit Console(int steps = 0, ui::Session::OpenClient openClient = {},
                     const Console* settingsOf = nullptr, model::Prices prices = {});
    ~Console();
    /// Attached, with `steps` steps of the sample run on screen.
    void goLive(int steps);
    /// Events the daemon sends; delivered before this returns.
    void send(std::vector<model::Event> events);
    /// The page of a class, which must be there.
    template <class V>
    V& view() {
        return *window->layout().find<V>();
    }
    /// Keys as if typed into the window, and what follows from them.
    void press(const char* keys);
    /// True when a visible label has this text.
    bool says(const QString& words) const;
    /// The widget of this accessible name that can be seen; null when there is none.
    QWidget* named(const QString& accessibleName, QWidget* within = nullptr) const;
    /// Lets queued deliveries and timers of the console run.
    void settle();

    QTemporaryDir folder;
    std::shared_ptr<QSettings> settings;
    std::shared_ptr<FakeClient::Log> log = std::make_shared<FakeClient::Log>();
    SampleRun run;
    ui::RunFeed feed;
    ui::TimeCursor cursor;
    std::unique_ptr<ui::Session> session;
    ui::ActionRegistry actions;
    ScriptedConfirmer confirmer;
    std::unique_ptr<ui::MainWindow> window;
};

}  // namespace bulkhead::test
