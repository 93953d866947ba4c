// SPDX-License-Identifier: GPL-3.0-only
#include "tests/app/support/sample_run_file.h"

#include "backend/history/run_store.h"
#include "tests/app/support/sample_run.h"

namespace bulkhead::test {

absl::Status writeSampleRun(const std::string& path, int steps) {
    const SystemClock clock;
    auto writer = history::RunWriter::create(path, "sample", clock);
    if (!writer.ok()) return writer.status();
    SampleRun run;
    std::vector<model::Event> events = run.events(steps);
    model::Event end;
    end.seq = events.back().seq + 1;
    end.timeNs = run.nowNs();
    end.body = model::RunFinished{true, "all steps done", static_cast<uint64_t>(steps)};
    events.push_back(end);
    for (const model::Event& event : events)
        if (absl::Status s = (*writer)->append(event); !s.ok()) return s;
    return (*writer)->flush();
}

}  // namespace bulkhead::test
