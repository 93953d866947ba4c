// SPDX-License-Identifier: GPL-3.0-only
#include "tests/app/support/sample_campaign.h"

#include <algorithm>

#include "backend/campaign/judge.h"
#include "backend/model/command_text.h"

namespace bulkhead::test {
namespace {

/// Steps of the campaign at which its plan happens; a kill is the sample run's own.
struct Deed {
    int step;
    uint64_t planned;
    const char* skipped;  ///< reason for skipping it; null: it takes effect
};
constexpr Deed kDeeds[] = {{3, 1, nullptr},
                           {6, 2, nullptr},
                           {9, 3,
                            "could not be injected: the disk of node0 serves others too; put the "
                            "checkpoints on a small file system of their own"},
                           {16, 5, nullptr},
                           {24, 6, nullptr},
                           {31, 7, "it would have left 2 of 4 replicas training, for 20 s"},
                           {37, 8, nullptr},
                           {45, 9, nullptr},
                           {52, 10, nullptr}};

model::CampaignStarted storm() {
    constexpr const char* kPlan[] = {"slow:rank=r1s0,factor=3,for=5s",
                                     "nan:replica=0",
                                     "fill-disk:node=node0,for=10s",
                                     "kill:replica=2@step=0/exchange",
                                     "delay:replica=3,by=20ms,for=5s",
                                     "hang:rank=r0s1,for=400ms",
                                     "cut:replica=1,for=5s",
                                     "slow:rank=r3s1,factor=3,for=5s",
                                     "flip-parameter:rank=r0s0",
                                     "nan:replica=3",
                                     "kill:replica=1",
                                     "hang:rank=r2s0,for=30s",
                                     "delay:replica=0,by=20ms,for=5s",
                                     "kill:rank=r3s1@step=0/vote"};
    model::CampaignStarted c;
    c.campaign = 1;
    c.name = "storm";
    c.seed = 3160;
    c.durationMs = 45'000;
    c.settleMs = 20'000;
    c.keepTraining = 2;
    c.criteria = {0.6, 0.5, 5'000, 60'000};
    c.by = "anna@console";
    for (const char* text : kPlan) {
        model::PlannedFault planned;
        planned.atMs = 1000 + c.plan.size() * 3100;
        planned.spec = *model::parseFault(text);
        c.plan.push_back(planned);
    }
    return c;
}

/// Numbers events on from those on screen.
class Tape {
  public:
    explicit Tape(Console& console) : console_(console), seq_(console.feed.state().seq) {}
    void add(model::EventBody body) {
        model::Event event;
        event.timeNs = console_.run.nowNs();
        event.body = std::move(body);
        add(std::move(event));
    }
    void add(model::Event event) {
        event.seq = ++seq_;
        events_.push_back(std::move(event));
    }
    void send() { console_.send(std::move(events_)); }

  private:
    Console& console_;
    uint64_t seq_;
    std::vector<model::Event> events_;
};

void act(Tape& tape, const std::vector<model::PlannedFault>& plan, const Deed& deed) {
    if (deed.skipped != nullptr)
        return tape.add(model::CampaignSkipped{1, deed.planned, deed.skipped});
    const uint64_t id = 100 + deed.planned;
    tape.add(model::FaultInjected{id, plan[deed.planned - 1].spec, 1,
                                  model::campaignFault(1, deed.planned)});
    if (deed.planned != 10) tape.add(model::FaultEnded{id, deed.planned % 2 ? "healed" : "done"});
}

}  // namespace

void playCampaign(Console& console, int steps) {
    Tape tape(console);
    const model::CampaignStarted campaign = storm();
    tape.add(campaign);
    for (int step = 1; step <= steps; ++step) {
        for (model::Event& event : console.run.nextStep()) {
            if (auto* kill = std::get_if<model::FaultInjected>(&event.body))
                kill->by = model::campaignFault(1, 4);
            tape.add(std::move(event));
        }
        for (const Deed& deed : kDeeds)
            if (deed.step == step) act(tape, campaign.plan, deed);
    }
    tape.send();
}

void endCampaign(Console& console) {
    const model::RunState& state = console.feed.state();
    model::CampaignEnded end{1, model::CampaignOutcome::kFailed, "", {}};
    end.verdicts = campaign::judge(state, state.campaigns.back(), state.lastEventNs, true,
                                   campaign::LedgerFinding{true,
                                                           "the commit log tiles the data: 1 504 "
                                                           "samples exactly once up to step 94"});
    for (const model::CampaignVerdict& v : end.verdicts)
        if (v.state == model::VerdictState::kFailed && end.why.empty()) end.why = v.words;
    Tape tape(console);
    tape.add(end);
    tape.send();
}

}  // namespace bulkhead::test
