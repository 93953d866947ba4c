// SPDX-License-Identifier: Apache-2.0
#include "tests/support/audit.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::support {
namespace {

/// Follows one line of descent: a lineage that opens takes back what came after its first step.
class Auditor {
  public:
    void take(const model::Event& event) {
        if (event.seq != lastSeq_ + 1)
            complain(absl::StrCat("event ", event.seq, " follows ", lastSeq_));
        lastSeq_ = event.seq;
        if (const auto* e = std::get_if<model::LineageOpened>(&event.body)) rollBack(e->fromStep);
        if (const auto* e = std::get_if<model::StepCommitted>(&event.body)) committed(*e);
        if (const auto* e = std::get_if<model::InvariantBroken>(&event.body))
            complain(absl::StrCat(e->invariant, " broken: ", e->detail));
    }
    std::vector<std::string> finish() {
        checkTiling();
        return std::move(complaints_);
    }

  private:
    void complain(std::string what) {
        if (complaints_.size() < 20) complaints_.push_back(std::move(what));
    }
    void rollBack(uint64_t fromStep) {
        ranges_.erase(ranges_.upper_bound(fromStep), ranges_.end());
        lastStep_ = fromStep;
    }
    void committed(const model::StepCommitted& e) {
        const CommitRecord& record = e.record;
        if (record.step != lastStep_ + 1)
            complain(absl::StrCat("step ", record.step, " committed after step ", lastStep_));
        lastStep_ = record.step;
        uint64_t samples = 0;
        for (const Contribution& c : record.contributors)
            for (const SampleRange& range : c.ranges) {
                samples += range.end - range.begin;
                ranges_[record.step].push_back(range);
            }
        if (samples != record.samples)
            complain(absl::StrCat("step ", record.step, " says ", record.samples,
                                  " samples, its ranges hold ", samples));
    }
    void checkTiling() {
        std::map<uint32_t, std::vector<SampleRange>> byDomain;
        for (const auto& [step, ranges] : ranges_)
            for (const SampleRange& range : ranges) byDomain[range.domain].push_back(range);
        for (auto& [domain, ranges] : byDomain) {
            std::sort(ranges.begin(), ranges.end());
            for (size_t i = 1; i < ranges.size(); ++i)
                if (ranges[i].begin < ranges[i - 1].end)
                    complain(absl::StrCat("domain ", domain, ": sample ", ranges[i].begin,
                                          " was trained on twice"));
        }
    }

    uint64_t lastSeq_ = 0;
    uint64_t lastStep_ = 0;
    std::map<uint64_t, std::vector<SampleRange>> ranges_;  ///< by step
    std::vector<std::string> complaints_;
};

}  // namespace

std::vector<std::string> auditRun(const std::vector<model::Event>& events) {
    Auditor auditor;
    for (const model::Event& e : events) auditor.take(e);
    return auditor.finish();
}

}  // namespace bulkhead::support
