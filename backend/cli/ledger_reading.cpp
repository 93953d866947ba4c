// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/ledger_reading.h"

namespace bulkhead::cli {

client::Result<LedgerReport> readLedger(Session& session, const std::string& run) {
    LedgerCheck check;
    model::EventQuery query;
    query.run = run;
    query.limit = 5000;
    query.types = {"step_committed", "lineage_opened", "range_quarantined", "invariant_broken"};
    do {
        const auto page = session.await<model::EventPage>(
            [&](client::Client& c, auto reply) { c.readEvents(query, std::move(reply)); });
        if (!page.ok()) return page.failure();
        for (const model::Event& event : page.value().events) check.add(event);
        query.fromSeq = page.value().nextSeq;
    } while (query.fromSeq != 0);
    return check.report();
}

}  // namespace bulkhead::cli
