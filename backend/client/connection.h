// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/client/client.h"
#include "backend/client/status_failure.h"
#include "backend/common/threads.h"
#include "bulkhead/v1/service.grpc.pb.h"

/// State shared by the calls and streams of one client. Internal to backend/client.
namespace bulkhead::client {

/// The channel must be let go by the thread that destroys the Client: let go last on one of gRPC's
/// own threads it would take down the queue that thread is serving, and abort. So calls and streams
/// do not own the connection but a Hold on it, released after everything else of theirs is gone.
class Connection {
  public:
    class Hold {
      public:
        explicit Hold(Connection& connection) : connection_(&connection) { connection.hold(); }
        Hold(Hold&& other) noexcept : connection_(std::exchange(other.connection_, nullptr)) {}
        Hold& operator=(Hold&&) = delete;
        ~Hold() {
            if (connection_ != nullptr) connection_->release();
        }

      private:
        Connection* connection_;
    };

    static Result<std::unique_ptr<Connection>> open(const Options& options);
    Connection(Options options, std::string token, std::shared_ptr<grpc::Channel> channel);

    /// Token and API version, on every call.
    void prepare(grpc::ClientContext& context) const;
    void prepare(grpc::ClientContext& context, std::chrono::milliseconds deadline) const;

    /// Makes gRPC forget its own back-off: the next call dials at once.
    void redial();

    /// The caller's identity, with a fresh request id if there is none.
    v1::Mutation mutation(const Mutation& mutation) const;

    /// A unary call: `start` begins it, `convert` turns the response into the result.
    template <class T, class Request, class Response, class Start, class Convert>
    void call(std::string title, Request request, Start start, Convert convert, Reply<T> reply) {
        call<T, Request, Response>(std::move(title), options.deadline, std::move(request),
                                   std::move(start), std::move(convert), std::move(reply));
    }
    template <class T, class Request, class Response, class Start, class Convert>
    void call(std::string title, std::chrono::milliseconds deadline, Request request, Start start,
              Convert convert, Reply<T> reply);

    /// Cancels every call under way and waits until nobody holds the connection any more.
    void drain();

    /// kVersion when the two ends cannot work together.
    static Result<model::ServerInfo> check(const v1::ServerInfo& info);

    Options options;
    std::unique_ptr<v1::Server::Stub> server;
    std::unique_ptr<v1::Jobs::Stub> jobs;
    std::unique_ptr<v1::Watch::Stub> watch;
    std::unique_ptr<v1::Runs::Stub> runs;

    /// The calls that drain() cancels.
    void began(grpc::ClientContext* context);
    void ended(grpc::ClientContext* context);

  private:
    void hold();
    void release();

    std::string token_;
    std::shared_ptr<grpc::Channel> channel_;
    Mutex mutex_;
    ConditionVariable idle_;
    std::set<grpc::ClientContext*> pending_ ABSL_GUARDED_BY(mutex_);
    size_t holds_ ABSL_GUARDED_BY(mutex_) = 0;
    bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

template <class T, class Request, class Response, class Start, class Convert>
void Connection::call(std::string title, std::chrono::milliseconds deadline, Request request,
                      Start start, Convert convert, Reply<T> reply) {
    struct Pending {
        explicit Pending(Connection& connection) : hold(connection) {}
        Hold hold;  // first: released last
        grpc::ClientContext context;
        Request request;
        Response response;
    };
    auto pending = std::make_shared<Pending>(*this);
    pending->request = std::move(request);
    prepare(pending->context, deadline);
    began(&pending->context);
    start(&pending->context, &pending->request, &pending->response,
          [this, pending, title = std::move(title), convert = std::move(convert),
           reply = std::move(reply)](const grpc::Status& status) {
              if (status.ok())
                  reply(convert(pending->response));
              else
                  reply(failureOf(status, title, options.target));
              ended(&pending->context);
          });
}

}  // namespace bulkhead::client
