// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/output_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/agent/agent.h"

namespace bulkhead::runtime {

absl::StatusOr<OutputReader> OutputReader::open(const std::string& pipePath,
                                                uint32_t linesPerSecond, OnLine onLine) {
    UniqueFd fd(::open(pipePath.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid())
        return absl::UnavailableError(
            absl::StrCat("cannot open the pipe ", pipePath, ": ", std::strerror(errno)));
    return OutputReader(std::move(fd), linesPerSecond, std::move(onLine));
}

bool OutputReader::drain(MonoNs now) {
    std::array<char, kReadAtOnce> buffer;
    const ssize_t got = ::read(fd_.get(), buffer.data(), buffer.size());
    if (got > 0) take({buffer.data(), static_cast<size_t>(got)}, now);
    return got > 0;
}

void OutputReader::finish(MonoNs now) {
    // No longer than a full pipe takes: a child of the process may print on.
    size_t left = kPipeBytes / kReadAtOnce + 1;
    while (left > 0 && drain(now)) --left;
    if (!line_.empty()) emit(now);
    // The last line says why the process ended, however much it printed before.
    if (dropped_ > 0) onLine_(std::move(lastDropped_), std::exchange(dropped_, 0) - 1);
}

UniqueFd OutputReader::openToPrint(const std::string& pipePath) {
    UniqueFd fd(::open(pipePath.c_str(), O_RDWR | O_CLOEXEC));
    if (fd.valid()) ::fcntl(fd.get(), F_SETPIPE_SZ, static_cast<int>(kPipeBytes));
    return fd;
}

void OutputReader::take(std::string_view bytes, MonoNs now) {
    for (const char c : bytes) {
        if (c == '\n') {
            if (!cut_) emit(now);
            line_.clear();
            cut_ = false;
        } else if (!cut_) {
            line_ += c;
            if (line_.size() >= kMaxOutputLine) {
                emit(now);
                cut_ = true;
            }
        }
    }
}

void OutputReader::emit(MonoNs now) {
    std::string line = std::exchange(line_, {});
    if (now - windowStart_ >= kSecond) {
        windowStart_ = now;
        inWindow_ = 0;
    }
    if (inWindow_ >= linesPerSecond_) {
        ++dropped_;
        lastDropped_ = std::move(line);
        return;
    }
    ++inWindow_;
    onLine_(std::move(line), std::exchange(dropped_, 0));
}

}  // namespace bulkhead::runtime
