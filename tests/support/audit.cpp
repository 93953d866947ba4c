// SPDX-License-Identifier: Apache-2.0
#include "tests/support/audit.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "backend/model/ledger_audit.h"

namespace bulkhead::support {

std::vector<std::string> auditRun(const std::vector<model::Event>& events) {
    std::vector<std::string> complaints;
    model::LedgerAudit ledger;
    uint64_t last = 0;
    for (const model::Event& event : events) {
        if (event.seq != last + 1)
            complaints.push_back(absl::StrCat("event ", event.seq, " follows ", last));
        last = event.seq;
        ledger.add(event);
    }
    for (const model::LedgerFinding& finding : ledger.report({}).findings)
        complaints.push_back(finding.what);
    return complaints;
}

}  // namespace bulkhead::support
