// SPDX-License-Identifier: Apache-2.0
#include "tests/support/made_run_file.h"

#include <limits>

#include "backend/history/run_store.h"

namespace bulkhead::test {
namespace {

/// Stands at the run's beginning, so that a file does not tell when it was made.
class ClockOfTheRun final : public Clock {
  public:
    MonoNs now() const override { return 0; }
    int64_t unixNs() const override { return MadeRun::kStartNs; }
};

/// Batches that end after so many events, and never for want of patience: keyframes are at the same
/// places every time.
history::WriterOptions options() {
    history::WriterOptions out;
    out.flushMs = 60'000;
    out.bufferBytes = std::numeric_limits<size_t>::max();
    return out;
}

}  // namespace

absl::Status writeMadeRun(const std::string& path, const RunShape& shape, uint64_t steps,
                          const std::function<void(uint64_t step)>& told) {
    const ClockOfTheRun clock;
    const history::WriterOptions how = options();
    auto writer = history::RunWriter::create(path, "sample", clock, how);
    if (!writer.ok()) return writer.status();
    uint64_t written = 0;
    const auto append = [&](const model::Event& event) {
        if (absl::Status s = (*writer)->append(event); !s.ok()) return s;
        return ++written % how.batchEvents == 0 ? (*writer)->flush(how.flushMs) : absl::OkStatus();
    };
    MadeRun run(shape);
    for (const model::Event& event : run.opening())
        if (absl::Status s = append(event); !s.ok()) return s;
    while (run.step() < steps) {
        for (const model::Event& event : run.nextStep())
            if (absl::Status s = append(event); !s.ok()) return s;
        if (told) told(run.step());
    }
    if (absl::Status s = append(run.ending()); !s.ok()) return s;
    return (*writer)->flush(how.flushMs);
}

absl::Status writeSampleRun(const std::string& path, int steps) {
    return writeMadeRun(path, {}, static_cast<uint64_t>(steps));
}

}  // namespace bulkhead::test
