// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "backend/model/json.h"
#include "tests/support/audit.h"
#include "tests/support/job_host.h"

namespace bulkhead::fault {

/// A test that runs jobs: starts them, waits for what must happen, breaks things. Every wait has a
/// deadline and, when it passes, shows the last events.
class JobTest : public testing::Test {
  protected:
    /// Program of the ranks.
    virtual std::string worker() const { return "bulkhead-worker"; }
    virtual runtime::Proposer proposer() const { return {}; }
    /// That the nodes' agents give to ranks.
    virtual std::string gpusOfNode() const { return "all"; }
    void host(uint32_t nodes = 1, runtime::AgentHeartbeat agentHeartbeat = {},
              uint32_t slotsPerNode = 16) {
        support::JobHostOptions options;
        options.nodes = nodes;
        options.slotsPerNode = slotsPerNode;
        options.worker = worker();
        options.proposer = proposer();
        options.agentHeartbeat = agentHeartbeat;
        options.gpus = gpusOfNode();
        host_ = std::make_unique<support::JobHost>(options);
        ASSERT_TRUE(host_->ready().ok()) << host_->ready();
    }
    void start(const model::JobSpec& spec, const std::string& resumeFrom = "") {
        auto run = host_->controller().start(spec, {"", resumeFrom});
        ASSERT_TRUE(run.ok()) << run.status();
        run_ = *run;
        at_ = 0;
    }

    template <class T>
    std::optional<T> await(std::function<bool(const T&)> matches = [](const T&) { return true; }) {
        auto event = host_->tape().await(
            run_, &at_,
            [&](const model::Event& e) {
                const T* body = std::get_if<T>(&e.body);
                return body != nullptr && matches(*body);
            },
            patience_);
        if (!event) {
            ADD_FAILURE() << T::kType << " did not come; the last events are\n" << lastEvents();
            return std::nullopt;
        }
        return std::get<T>(event->body);
    }
    void awaitStep(uint64_t step) {
        await<model::StepCommitted>(
            [step](const model::StepCommitted& c) { return c.record.step >= step; });
    }
    /// The whole run so far is consistent, and it ended well.
    void expectFinishedWell() {
        const auto finished = await<model::RunFinished>();
        ASSERT_TRUE(finished.has_value());
        EXPECT_TRUE(finished->ok) << finished->why;
        EXPECT_THAT(support::auditRun(host_->tape().events(run_)), testing::IsEmpty());
    }
    template <class T>
    std::vector<T> all() const {
        std::vector<T> found;
        for (const model::Event& e : host_->tape().events(run_))
            if (const T* body = std::get_if<T>(&e.body)) found.push_back(*body);
        return found;
    }
    uint64_t inject(model::FaultKind kind, int32_t replica, uint64_t atStep = 0,
                    uint64_t durationMs = 0) {
        model::FaultSpec fault;
        fault.kind = kind;
        fault.replica = replica;
        fault.atStep = atStep;
        fault.durationMs = durationMs;
        const auto id = host_->controller().inject(run_, fault, 0, "", "test");
        EXPECT_TRUE(id.ok()) << id.status();
        return id.value_or(0);
    }
    absl::Status act(model::ActionKind kind, int32_t replica = -1) {
        model::Action action;
        action.kind = kind;
        action.replica = replica;
        return host_->controller().act(run_, action, 0, "", "test");
    }
    /// BULKHEAD_TEST_TAPE names a file that gets every event of a test's runs, for looking closer.
    void TearDown() override {
        const char* path = std::getenv("BULKHEAD_TEST_TAPE");
        if (path == nullptr || !host_) return;
        std::ofstream tape(path);
        for (const model::Event& e : host_->tape().events(run_))
            tape << model::toJsonText(e) << "\n";
    }

    /// Returns the events without the figures and with the steps cut short.
    std::string lastEvents() const {
        std::deque<std::string> lines;
        uint64_t steps = 0;
        for (const model::Event& e : host_->tape().events(run_)) {
            if (const auto* c = std::get_if<model::StepCommitted>(&e.body)) {
                ++steps;
                lines.push_back("... step " + std::to_string(c->record.step) + " with " +
                                std::to_string(c->record.contributors.size()) + " contributors");
                if (steps > 2) lines.erase(lines.end() - 2);
                continue;
            }
            if (std::holds_alternative<model::FleetSampled>(e.body) ||
                std::holds_alternative<model::QuorumDecided>(e.body) ||
                std::holds_alternative<model::CheckpointWritten>(e.body) ||
                std::holds_alternative<model::ExpertLoads>(e.body))
                continue;
            steps = 0;
            lines.push_back(model::toJsonText(e).substr(0, 500));
            while (lines.size() > 60) lines.pop_front();
        }
        std::string text;
        for (const std::string& line : lines) text += line + "\n";
        return text;
    }

    std::unique_ptr<support::JobHost> host_;
    std::string run_;
    size_t at_ = 0;
    MonoNs patience_ = 30 * kSecond;
};

}  // namespace bulkhead::fault
