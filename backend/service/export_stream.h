// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <streambuf>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "backend/common/threads.h"
#include "backend/service/open.h"
#include "backend/service/status_map.h"
#include "backend/service/workers.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {

/// Text written to an ostream on a worker, sent piece by piece as fast as the reader takes it. A
/// reader that takes nothing for `patience` holds a worker that others wait for: its export ends
/// with DeadlineExceeded. Owns itself from its creation to OnDone.
class ExportStream final : public grpc::ServerWriteReactor<v1::ExportChunk> {
  public:
    using Write = std::function<absl::Status(std::ostream&)>;

    /// `share` is destroyed when the export is over.
    ExportStream(grpc::CallbackServerContext& context, Workers& workers, Open& open,
                 const std::string& caller, std::shared_ptr<void> share,
                 std::chrono::milliseconds patience, Write write)
        : context_(context), open_(open), share_(std::move(share)), patience_(patience) {
        open_.enter();
        workers.post(caller, [this, write = std::move(write)] {
            Pieces pieces(*this);
            std::ostream out(&pieces);
            const absl::Status status = write(out);
            out.flush();
            Finish(toGrpc(status));
        });
    }

    void OnWriteDone(bool ok) override {
        const MutexLock lock(mutex_);
        writing_ = false;
        gone_ = gone_ || !ok;
        written_.notify_all();
    }
    void OnCancel() override {
        const MutexLock lock(mutex_);
        gone_ = true;
        written_.notify_all();
    }
    void OnDone() override {
        Open& open = open_;
        delete this;
        open.leave();
    }

  private:
    static constexpr size_t kPiece = 32 * 1024;

    class Pieces final : public std::streambuf {
      public:
        explicit Pieces(ExportStream& stream) : stream_(stream) {}

      private:
        int_type overflow(int_type c) override {
            if (c != traits_type::eof()) text_ += traits_type::to_char_type(c);
            return text_.size() < kPiece || sync() == 0 ? traits_type::not_eof(c)
                                                        : traits_type::eof();
        }
        std::streamsize xsputn(const char* s, std::streamsize n) override {
            text_.append(s, static_cast<size_t>(n));
            return text_.size() < kPiece || sync() == 0 ? n : 0;
        }
        int sync() override {
            if (text_.empty()) return 0;
            const bool sent = stream_.send(std::move(text_));
            text_.clear();
            return sent ? 0 : -1;
        }
        ExportStream& stream_;
        std::string text_;
    };

    /// Returns when it has left; false when the reader went away.
    bool send(std::string text) {
        const auto left = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !writing_; };
        MutexLock lock(mutex_);
        if (gone_) return false;
        chunk_.set_data(std::move(text));
        writing_ = true;
        StartWrite(&chunk_);
        if (written_.wait_for(lock, patience_, left)) return !gone_;
        lock.unlock();
        endNow(context_, absl::DeadlineExceededError(absl::StrCat(
                             "The reader of this export took nothing for ", patience_.count(),
                             " ms; export into a file and read that")));
        lock.lock();
        written_.wait(lock, left);
        return false;
    }

    grpc::CallbackServerContext& context_;
    Open& open_;
    const std::shared_ptr<void> share_;
    const std::chrono::milliseconds patience_;
    Mutex mutex_;
    ConditionVariable written_;
    v1::ExportChunk chunk_ ABSL_GUARDED_BY(mutex_);
    bool writing_ ABSL_GUARDED_BY(mutex_) = false;
    bool gone_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bulkhead::service
