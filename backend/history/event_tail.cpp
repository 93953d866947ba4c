// SPDX-License-Identifier: Apache-2.0
#include "backend/history/event_tail.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "backend/common/codec.h"
#include "backend/model/names.h"
#include "backend/model/run_state.h"

namespace bulkhead::history {
namespace {

namespace fs = std::filesystem;

/// Before the bytes of each event.
struct Frame {
    uint64_t version = 0;
    uint64_t checksum = 0;
    uint64_t length = 0;
};

void readFrames(const std::string& bytes, std::map<uint64_t, model::Event>& into) {
    size_t at = 0;
    while (bytes.size() - at >= sizeof(Frame)) {
        Frame frame;
        std::memcpy(&frame, bytes.data() + at, sizeof frame);
        at += sizeof frame;
        if (frame.version != model::modelFingerprint() || frame.length > bytes.size() - at) return;
        const std::string_view body(bytes.data() + at, frame.length);
        if (XXH3_64bits(body.data(), body.size()) != frame.checksum) return;
        auto event = decode<model::Event>(body);
        if (!event.ok()) return;
        into.insert_or_assign(event->seq, *std::move(event));
        at += frame.length;
    }
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventTail>> EventTail::open(const fs::path& file, int64_t runId) {
    std::unique_ptr<EventTail> tail(new EventTail);
    std::map<uint64_t, model::Event> left;
    for (size_t i = 0; i < 2; ++i) {
        Part& part = tail->parts_[i];
        part.path = model::concat(file.string(), "-tail-", runId, i == 0 ? "-a" : "-b");
        if (absl::Status s = tail->openPart(part); !s.ok()) return s;
        std::ifstream in(part.path, std::ios::binary);
        readFrames(std::string(std::istreambuf_iterator<char>(in), {}), left);
    }
    for (auto& [seq, event] : left) tail->left_.push_back(std::move(event));
    return tail;
}

absl::Status EventTail::openPart(Part& part) {
    part.fd = ::open(part.path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    const off_t end = part.fd < 0 ? -1 : ::lseek(part.fd, 0, SEEK_END);
    if (end < 0)
        return absl::UnavailableError(model::concat(part.path.string(), ": cannot be opened (",
                                                    std::strerror(errno),
                                                    "); check that the folder may be written"));
    part.size = static_cast<uint64_t>(end);
    return absl::OkStatus();
}

EventTail::~EventTail() {
    for (Part& part : parts_) {
        if (part.fd >= 0) ::close(part.fd);
        std::error_code ignored;
        if (remove_) fs::remove(part.path, ignored);
    }
}

absl::Status EventTail::add(const model::Event& event) {
    const std::string body = encode(event);
    const Frame frame{model::modelFingerprint(), XXH3_64bits(body.data(), body.size()),
                      body.size()};
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
    bytes += body;
    Part& part = parts_[active_];
    size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = ::pwrite(part.fd, bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(part.size + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const std::string why = std::strerror(errno);
            (void)!::ftruncate(part.fd, static_cast<off_t>(part.size));
            return absl::UnavailableError(
                model::concat(part.path.string(), ": cannot be written: ", why));
        }
        done += static_cast<size_t>(n);
    }
    part.size += bytes.size();
    return absl::OkStatus();
}

void EventTail::turn() {
    active_ = 1 - active_;
}

void EventTail::drop() {
    empty(parts_[1 - active_]);
}

void EventTail::clear() {
    for (Part& part : parts_) empty(part);
}

void EventTail::empty(Part& part) {
    // What stays is only read again, and passed over by its seq.
    if (part.size > 0 && ::ftruncate(part.fd, 0) == 0) part.size = 0;
}

}  // namespace bulkhead::history
