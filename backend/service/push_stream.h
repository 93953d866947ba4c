// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/service/feed.h"
#include "backend/service/open.h"
#include "backend/service/status_map.h"

namespace bulkhead::service {

/// One reader of a feed as a gRPC server stream: whenever its last message has left, it asks the
/// feed what is next. Nothing is queued for it. Once in kLookAgain at most it is asked whether the
/// reader still may, who may have been removed or have expired. Owns itself from its creation to
/// OnDone; keeps the feed until then.
template <class Source, class Update>
class PushStream final : public grpc::ServerWriteReactor<Update>, private Listener {
  public:
    /// `allowed`: does the reader still have what the call needs? Lives as long as the stream.
    using Allowed = std::function<absl::Status()>;
    static constexpr std::chrono::seconds kLookAgain{1};

    PushStream(std::shared_ptr<Source> source, typename Source::Cursor cursor, Allowed allowed,
               Open& open)
        : source_(std::move(source)),
          allowed_(std::move(allowed)),
          cursor_(cursor),
          lookAgain_(std::chrono::steady_clock::now() + kLookAgain),
          open_(open) {
        open_.enter();
        // The client learns that it is connected before there is anything to say.
        this->StartSendInitialMetadata();
        source_->add(this);
        wake();
    }

    void OnWriteDone(bool ok) override {
        const MutexLock lock(mutex_);
        writing_ = false;
        if (ok)
            pump();
        else
            finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader went away"));
    }

    void OnCancel() override {
        const MutexLock lock(mutex_);
        cancelled_ = true;
        if (!writing_) finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader went away"));
    }

    void OnDone() override {
        source_->remove(this);
        Open& open = open_;
        delete this;
        open.leave();
    }

  private:
    void wake() override {
        const MutexLock lock(mutex_);
        if (!writing_) pump();
    }

    void pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        if (finished_) return;
        if (cancelled_)
            return finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader went away"));
        update_.Clear();
        if (!source_->next(cursor_, update_)) {
            if (const auto why = source_->ended(cursor_)) finish(toGrpc(*why));
            return;
        }
        if (const absl::Status status = stillAllowed(); !status.ok()) return finish(toGrpc(status));
        writing_ = true;
        this->StartWrite(&update_);
    }

    absl::Status stillAllowed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const auto now = std::chrono::steady_clock::now();
        if (now < lookAgain_) return absl::OkStatus();
        lookAgain_ = now + kLookAgain;
        return allowed_();
    }

    void finish(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        if (finished_) return;
        finished_ = true;
        this->Finish(status);
    }

    std::shared_ptr<Source> source_;
    const Allowed allowed_;
    Mutex mutex_;
    typename Source::Cursor cursor_ ABSL_GUARDED_BY(mutex_);
    std::chrono::steady_clock::time_point lookAgain_ ABSL_GUARDED_BY(mutex_);
    Open& open_;
    Update update_ ABSL_GUARDED_BY(mutex_);
    bool writing_ ABSL_GUARDED_BY(mutex_) = false;
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
