// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QThreadPool>
#include <functional>
#include <utility>

namespace bulkhead::ui {

/// Works out answers off the GUI's thread, one at a time. Of questions that come meanwhile only the
/// newest is kept. Thread: the GUI's.
class Background final : public QObject {
    Q_OBJECT
  public:
    explicit Background(QObject* parent = nullptr);
    /// Waits for the work under way, which is bounded; its answer is dropped.
    ~Background() override;

    /// `work` runs on another thread and touches nothing of this one's; `done` gets what it
    /// returned, here.
    template <class Work, class Done>
    void run(Work work, Done done) {
        ask([work = std::move(work), done = std::move(done)]() -> Answer {
            return [done, result = work()] { done(result); };
        });
    }

  private:
    using Answer = std::function<void()>;
    using Question = std::function<Answer()>;
    void ask(Question question);
    void finish(const Answer& answer);

    QThreadPool pool_;
    Question waiting_;
    bool running_ = false;
};

}  // namespace bulkhead::ui
