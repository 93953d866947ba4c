// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/proc_sampler.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {

ProcSampler::ProcSampler(std::string procRoot)
    : root_(std::move(procRoot)),
      ticksPerSecond_(::sysconf(_SC_CLK_TCK)),
      pageBytes_(::sysconf(_SC_PAGESIZE)) {}

ProcessFigures ProcSampler::sample(int32_t pid, MonoNs now) {
    ProcessFigures figures;
    std::ifstream file(absl::StrCat(root_, "/", pid, "/stat"));
    std::string line;
    if (!std::getline(file, line) || line.rfind(')') == std::string::npos) return figures;
    std::istringstream rest(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int i = 3; i <= 13; ++i) rest >> skipped;
    uint64_t user = 0;
    uint64_t system = 0;
    rest >> user >> system;
    for (int i = 16; i <= 23; ++i) rest >> skipped;
    int64_t pages = 0;
    if (!(rest >> pages)) return figures;
    figures.rssBytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(pageBytes_);
    const uint64_t ticks = user + system;
    if (const auto it = last_.find(pid); it != last_.end() && now > it->second.at) {
        const double seconds = static_cast<double>(now - it->second.at) / kSecond;
        figures.cpuPercent = 100.0 * static_cast<double>(ticks - it->second.ticks) /
                             static_cast<double>(ticksPerSecond_) / seconds;
    }
    last_[pid] = {ticks, now};
    return figures;
}

void ProcSampler::forget(int32_t pid) {
    last_.erase(pid);
}

ProcSampler::Memory ProcSampler::memory() const {
    Memory memory;
    std::ifstream file(root_ + "/meminfo");
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream fields(line);
        std::string name;
        uint64_t kib = 0;
        if (!(fields >> name >> kib)) continue;
        if (name == "MemTotal:") memory.totalBytes = kib << 10;
        if (name == "MemAvailable:") memory.availableBytes = kib << 10;
    }
    return memory;
}

}  // namespace bulkhead::runtime
