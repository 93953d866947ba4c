// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "backend/client/client.h"
#include "backend/client/connection.h"
#include "backend/common/threads.h"

/// A server stream that comes back by itself: handshake, stream, and after a break the same again
/// with growing delays. Internal to backend/client; it keeps client.h's promises for watches.
namespace bulkhead::client {

/// Delays between attempts. They end below gRPC's own 1 s, since an attempt that only wakes gRPC's
/// dialling costs one more delay: a daemon that is back is seen within 1 s.
constexpr std::chrono::milliseconds kFirstDelay{200};
constexpr std::chrono::milliseconds kLastDelay{500};
constexpr std::chrono::milliseconds kHandshakeLimit{3000};

template <class Request, class Update>
class StreamCore : public std::enable_shared_from_this<StreamCore<Request, Update>> {
  public:
    struct Hooks {
        std::string title;  ///< of failures
        Request request;
        /// Starts the call on the reactor.
        std::function<void(Connection&, grpc::ClientContext*, const Request*,
                           grpc::ClientReadReactor<Update>*)>
            open;
        std::function<void(const model::ServerInfo&, Request&)> onConnected;
        /// A failure ends the stream for good.
        std::function<std::optional<Failure>(const Update&)> onUpdate;
        std::function<void(Failure, SteadyTime)> onDisconnected;
    };

    StreamCore(Connection& connection, Hooks hooks)
        : hold_(connection), connection_(&connection), hooks_(std::move(hooks)) {}

    void start() {
        {
            const MutexLock lock(mutex_);
            busy_ = true;
        }
        handshake();
    }

    /// Returns when no callback runs any more, see Watch.
    void stop() {
        MutexLock lock(mutex_);
        stopped_ = true;
        if (context_) context_->TryCancel();
        if (alarm_) alarm_->Cancel();
        if (inCallback_ == std::this_thread::get_id()) return;
        idle_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_; });
    }

    void retryNow() {
        const MutexLock lock(mutex_);
        if (alarm_) alarm_->Cancel();
    }

  private:
    class Reader final : public grpc::ClientReadReactor<Update> {
      public:
        explicit Reader(std::shared_ptr<StreamCore> core) : core_(std::move(core)) {}
        void begin(grpc::ClientContext* context) {
            core_->hooks_.open(*core_->connection_, context, &core_->hooks_.request, this);
            this->StartRead(&update_);
            this->StartCall();
        }
        void OnReadDone(bool ok) override {
            if (ok && core_->take(update_)) this->StartRead(&update_);
        }
        void OnDone(const grpc::Status& status) override {
            const std::shared_ptr<StreamCore> core = std::move(core_);
            delete this;
            core->broke(status);
        }

      private:
        std::shared_ptr<StreamCore> core_;
        Update update_;
    };

    /// A new context for the next call, or nullptr when stopped.
    std::shared_ptr<grpc::ClientContext> newContext() {
        const MutexLock lock(mutex_);
        if (stopped_) {
            finish();
            return nullptr;
        }
        context_ = std::make_shared<grpc::ClientContext>();
        return context_;
    }

    void dropContext() {
        const MutexLock lock(mutex_);
        context_.reset();
    }

    void handshake() {
        struct Pending {
            v1::GetInfoRequest request;
            v1::ServerInfo response;
        };
        auto self = this->shared_from_this();  // outlives the context
        auto context = newContext();
        if (!context) return;
        connection_->prepare(*context, kHandshakeLimit);
        connection_->redial();
        auto pending = std::make_shared<Pending>();
        connection_->server->async()->GetInfo(
            context.get(), &pending->request, &pending->response,
            [self, context, pending](grpc::Status status) mutable {
                // The context holds the channel: it must be gone before the core and its hold.
                context.reset();
                self->dropContext();
                self->shookHands(status, pending->response);
            });
    }

    void shookHands(const grpc::Status& status, const v1::ServerInfo& response) {
        if (!status.ok()) return broke(status);
        Result<model::ServerInfo> info = Connection::check(response);
        if (!info.ok()) return brokeWith(info.failure());
        deliver([&] { hooks_.onConnected(info.value(), hooks_.request); });
        const auto context = newContext();
        if (!context) return;
        connection_->prepare(*context);
        (new Reader(this->shared_from_this()))->begin(context.get());
    }

    /// False when the stream is to end.
    bool take(const Update& update) {
        delay_ = kFirstDelay;
        deliver([&] { fatal_ = hooks_.onUpdate(update); });
        const MutexLock lock(mutex_);
        if (fatal_) context_->TryCancel();
        return !fatal_ && !stopped_;
    }

    void broke(const grpc::Status& status) {
        if (fatal_) return brokeWith(*fatal_);
        if (status.ok())
            return brokeWith({FailureCode::kUnreachable, hooks_.title,
                              "The daemon ended the stream.", "It is asked again.", true});
        brokeWith(failureOf(status, hooks_.title, connection_->options.target));
    }

    void brokeWith(Failure failure) {
        // A stream that is cut shows as cancelled or as an internal error of the transport; unless
        // the daemon said otherwise, it is worth another try.
        const auto delay = delay_;
        delay_ = std::min(delay_ * 2, kLastDelay);
        const SteadyTime next = std::chrono::steady_clock::now() + delay;
        const bool again = failure.retryable;
        deliver([&] { hooks_.onDisconnected(std::move(failure), next); });
        const MutexLock lock(mutex_);
        context_.reset();
        if (stopped_ || !again) return finish();
        alarm_ = std::make_shared<grpc::Alarm>();
        auto self = this->shared_from_this();
        alarm_->Set(std::chrono::system_clock::now() + delay, [self](bool) {
            std::shared_ptr<grpc::Alarm> fired;
            {
                const MutexLock inner(self->mutex_);
                fired = std::move(self->alarm_);
            }
            self->handshake();
        });
    }

    /// Runs a callback of the owner unless stopped; stop() waits for it.
    template <class F>
    void deliver(F&& f) {
        {
            const MutexLock lock(mutex_);
            if (stopped_) return;
            inCallback_ = std::this_thread::get_id();
        }
        f();
        const MutexLock lock(mutex_);
        inCallback_ = {};
    }

    /// Nothing is under way any more.
    void finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        busy_ = false;
        idle_.notify_all();
    }

    Connection::Hold hold_;  // first: released last
    Connection* connection_;
    Hooks hooks_;
    Mutex mutex_;
    ConditionVariable idle_;
    bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
    bool busy_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread::id inCallback_ ABSL_GUARDED_BY(mutex_);
    std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
    std::shared_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
    // Used by the one callback chain that runs at a time.
    std::chrono::milliseconds delay_ = kFirstDelay;
    std::optional<Failure> fatal_;
};

template <class Request, class Update>
class StreamWatch final : public Watch {
  public:
    using Core = StreamCore<Request, Update>;
    StreamWatch(Connection& connection, typename Core::Hooks hooks)
        : core_(std::make_shared<Core>(connection, std::move(hooks))) {
        core_->start();
    }
    ~StreamWatch() override { core_->stop(); }
    void retryNow() override { core_->retryNow(); }

  private:
    std::shared_ptr<Core> core_;
};

}  // namespace bulkhead::client
