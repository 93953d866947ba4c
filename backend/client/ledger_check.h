// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "backend/client/client.h"
#include "backend/model/event.h"
#include "backend/model/json.h"

namespace bulkhead::client {

struct LedgerReport {
    uint64_t steps = 0;    ///< committed and not superseded
    uint64_t samples = 0;  ///< committed exactly once
    uint64_t twice = 0;    ///< samples committed more than once: must be 0 (I2)
    uint64_t open = 0;     ///< below the high water and neither committed nor quarantined: at the
                           ///< end of a run, what was handed back and not yet trained on
    uint64_t quarantined = 0;
    uint64_t broken = 0;  ///< invariants the run itself reported broken
    bool ok() const { return twice == 0 && broken == 0; }
    std::string text() const;
    model::Json json() const;
};

/// Re-adds a run's data ledger from its events alone: I2 of docs/protocol.md, per lineage. A
/// lineage that opens takes back the steps behind it. Feed events in order.
class LedgerCheck {
  public:
    void add(const model::Event& event);
    LedgerReport report() const;

  private:
    std::map<uint64_t, CommitRecord> steps_;
    bool resumed_ = false;  ///< the data before its first step belongs to an earlier run
    std::vector<SampleRange> quarantined_;
    uint64_t broken_ = 0;
};

/// Adds a run's ledger up from the events of the history, page by page. Thread: any; the reply
/// comes on one of the client's. `client` outlives the reply, as with its own calls.
void checkLedger(Client& client, std::string run, Reply<LedgerReport> reply);

}  // namespace bulkhead::client
