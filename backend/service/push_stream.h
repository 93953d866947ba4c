// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/service/feed.h"
#include "backend/service/open.h"
#include "backend/service/status_map.h"
#include "backend/service/workers.h"

namespace bulkhead::service {

/// One reader of a feed as a gRPC server stream: whenever its last message has left, it asks the
/// feed what is next, on one of `workers` when it is its caller's turn. Nothing is queued for it.
/// Once in kLookAgain at most it is asked whether the reader still may, who may have been removed
/// or have expired. Owns itself from its creation to OnDone; keeps the feed until then.
template <class Source, class Update>
class PushStream final : public grpc::ServerWriteReactor<Update>, private Listener {
  public:
    /// `allowed`: does the reader still have what the call needs? Lives as long as the stream.
    using Allowed = std::function<absl::Status()>;
    static constexpr std::chrono::seconds kLookAgain{1};

    /// `share` is destroyed when the stream is over.
    PushStream(std::shared_ptr<Source> source, typename Source::Cursor cursor, Allowed allowed,
               Workers& workers, Open& open, std::string caller, std::shared_ptr<void> share)
        : source_(std::move(source)),
          allowed_(std::move(allowed)),
          workers_(workers),
          open_(open),
          caller_(std::move(caller)),
          share_(std::move(share)),
          cursor_(std::move(cursor)),
          lookAgain_(std::chrono::steady_clock::now() + kLookAgain) {
        open_.enter();
        // The client learns that it is connected before there is anything to say.
        this->StartSendInitialMetadata();
        source_->add(this);
        wake();
    }

    void OnWriteDone(bool ok) override {
        if (!ok) cancel();
        post();
    }

    void OnCancel() override {
        if (cancel()) post();
    }

    void OnDone() override {
        source_->remove(this);
        Open& open = open_;
        delete this;
        open.leave();
    }

  private:
    void wake() override {
        {
            const MutexLock lock(mutex_);
            news_ = true;
            if (busy_ || finished_) return;
            busy_ = true;
        }
        post();
    }

    /// True: nobody is busy with the stream, and the caller of this function is from now on.
    bool cancel() {
        const MutexLock lock(mutex_);
        cancelled_ = true;
        return !finished_ && !std::exchange(busy_, true);
    }

    void post() {
        workers_.post(caller_, [this] { pump(); });
    }

    /// Runs with `busy_` set by the caller. It ends with another write, which calls it again, with
    /// the stream, or with `busy_` cleared; then it touches nothing, since the stream may be gone.
    void pump() {
        for (;;) {
            if (begin()) return end(absl::CancelledError("the reader went away"));
            update_.Clear();
            if (source_->next(cursor_, update_)) {
                if (const absl::Status status = stillAllowed(); !status.ok()) return end(status);
                return this->StartWrite(&update_);
            }
            if (const auto why = source_->ended(cursor_)) return end(*why);
            const MutexLock lock(mutex_);
            if (!news_ && !cancelled_) {
                busy_ = false;
                return;
            }
        }
    }

    absl::Status stillAllowed() {
        const auto now = std::chrono::steady_clock::now();
        if (now < lookAgain_) return absl::OkStatus();
        lookAgain_ = now + kLookAgain;
        return allowed_();
    }

    /// True: the reader went away.
    bool begin() {
        const MutexLock lock(mutex_);
        news_ = false;
        return cancelled_;
    }

    void end(const absl::Status& why) {
        {
            const MutexLock lock(mutex_);
            finished_ = true;
        }
        this->Finish(toGrpc(why));
    }

    const std::shared_ptr<Source> source_;
    const Allowed allowed_;
    Workers& workers_;
    Open& open_;
    const std::string caller_;
    const std::shared_ptr<void> share_;
    // Only the thread that has set `busy_` uses these.
    typename Source::Cursor cursor_;
    std::chrono::steady_clock::time_point lookAgain_;
    Update update_;
    Mutex mutex_;
    bool busy_ ABSL_GUARDED_BY(mutex_) = false;  ///< a pump() is to come or runs, or a write
    bool news_ ABSL_GUARDED_BY(mutex_) = false;  ///< since the source was asked last
    bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
    bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

/// A stream that was refused before it began.
template <class Update>
class RefusedStream final : public grpc::ServerWriteReactor<Update> {
  public:
    explicit RefusedStream(const absl::Status& status) { this->Finish(toGrpc(status)); }
    void OnDone() override { delete this; }
};

}  // namespace bulkhead::service
