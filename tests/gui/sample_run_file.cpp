// SPDX-License-Identifier: GPL-3.0-only
#include <cstdio>

#include "backend/history/run_store.h"
#include "tests/app/support/sample_run.h"

/// Writes the made-up run as a run file: bulkhead_console_sample_run_file FILE [STEPS].
int main(int argc, char** argv) {
    using namespace bulkhead;
    if (argc < 2) return 2;
    const SystemClock clock;
    auto writer = history::RunWriter::create(argv[1], "sample", clock);
    if (!writer.ok()) {
        std::fprintf(stderr, "%s\n", std::string(writer.status().message()).c_str());
        return 1;
    }
    test::SampleRun run;
    std::vector<model::Event> events = run.events(argc > 2 ? std::atoi(argv[2]) : 140);
    model::Event end;
    end.seq = events.back().seq + 1;
    end.timeNs = run.nowNs();
    end.body = model::RunFinished{true, "all steps done", 140};
    events.push_back(end);
    for (const model::Event& event : events)
        if (!(*writer)->append(event).ok()) return 1;
    return (*writer)->flush().ok() ? 0 : 1;
}
