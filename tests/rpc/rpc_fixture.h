// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/client/client.h"
#include "backend/common/threads.h"
#include "backend/model/run_state.h"
#include "backend/service/server.h"
#include "tests/rpc/fake_backend.h"

namespace bulkhead::testing {

/// Longer than anything takes on a busy machine; a test that waits so long has failed.
constexpr std::chrono::seconds kForever{30};

/// Runs an asynchronous call and waits for its reply.
template <class T, class Start>
client::Result<T> await(Start&& start) {
    auto promise = std::make_shared<std::promise<client::Result<T>>>();
    auto future = promise->get_future();
    start([promise](client::Result<T> result) { promise->set_value(std::move(result)); });
    if (future.wait_for(kForever) != std::future_status::ready)
        return client::Failure{client::FailureCode::kTimeout, "no reply came", "", "", false};
    return future.get();
}

/// Records the updates of a watch, for a test to wait on.
class WatchLog {
  public:
    client::WatchHandlers handlers() {
        client::WatchHandlers out;
        out.onSnapshot = [this](client::StatePtr state) {
            note([&] {
                ++snapshots;
                this->state = *state;
            });
        };
        out.onEvents = [this](std::vector<model::Event> batch) {
            note([&] {
                for (const model::Event& event : batch) {
                    gap = gap || event.seq != state->seq + 1;
                    model::apply(*state, event);
                    events += 1;
                }
            });
        };
        out.onPosition = [this](model::ReplayPosition p) { note([&] { position = p; }); };
        out.onDisconnected = [this](client::Failure failure, client::SteadyTime next) {
            note([&] {
                failures.push_back(std::move(failure));
                nextAttempt = next;
            });
        };
        return out;
    }

    template <class Condition>
    bool waitFor(Condition condition) {
        MutexLock lock(mutex_);
        return changed_.wait_for(lock, kForever, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return condition(*this);
        });
    }

    /// `look(*this)` while nothing changes.
    template <class Look>
    void look(Look look) {
        const MutexLock lock(mutex_);
        look(*this);
    }

    int snapshots = 0;
    uint64_t events = 0;
    bool gap = false;
    std::optional<model::RunState> state;
    std::optional<model::ReplayPosition> position;
    std::vector<client::Failure> failures;
    client::SteadyTime nextAttempt;

  private:
    template <class F>
    void note(F&& f) {
        const MutexLock lock(mutex_);
        f();
        changed_.notify_all();
    }
    Mutex mutex_;
    ConditionVariable changed_;
};

class RpcTest : public ::testing::Test {
  protected:
    RpcTest() {
        std::string pattern = ::testing::TempDir() + "bulkhead-rpc-XXXXXX";
        dir_ = ::mkdtemp(pattern.data());
        backend_.addJob("demo");
    }
    ~RpcTest() override {
        server_.reset();
        std::filesystem::remove_all(dir_);
    }

    std::string socket() const { return dir_ + "/s.sock"; }
    std::string tokenFile() const { return dir_ + "/token"; }

    service::ServerOptions unixOptions() {
        service::ServerOptions options;
        options.socket = socket();
        options.backend = &backend_;
        options.build = "test";
        return options;
    }
    service::ServerOptions tcpOptions(const std::string& listen = "127.0.0.1:0") {
        service::ServerOptions options = unixOptions();
        options.socket.clear();
        options.listen = {listen};
        options.tokenFile = tokenFile();
        return options;
    }
    void serve(service::ServerOptions options) {
        auto server = service::Server::start(std::move(options), clock_);
        ASSERT_TRUE(server.ok()) << server.status();
        server_ = *std::move(server);
    }
    std::unique_ptr<client::Client> connect(const std::string& tokenFile = "") {
        client::Options options;
        options.target = server_ ? server_->addresses().front() : "unix:" + socket();
        options.tokenFile = tokenFile;
        options.who = "tester";
        options.deadline = kForever;
        auto client = client::Client::open(options);
        EXPECT_TRUE(client.ok());
        return std::move(client).value();
    }

    SystemClock clock_;
    std::string dir_;
    FakeBackend backend_;
    std::unique_ptr<service::Server> server_;
};

inline model::EventBody note(const std::string& why) {
    model::JobPhaseChanged changed;
    changed.phase = model::JobPhase::kTraining;
    changed.why = why;
    return changed;
}

}  // namespace bulkhead::testing
