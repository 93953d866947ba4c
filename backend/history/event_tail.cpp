// SPDX-License-Identifier: Apache-2.0
#include "backend/history/event_tail.h"

#include <xxhash.h>

#include <cstring>
#include <map>
#include <string>

#include "backend/common/codec.h"
#include "backend/model/names.h"
#include "backend/model/run_state.h"

namespace bulkhead::history {
namespace {

/// Before the bytes of each event.
struct Frame {
    uint64_t version = 0;
    uint64_t checksum = 0;
    uint64_t length = 0;
};

void readFrames(const std::string& bytes, uint64_t version,
                std::map<uint64_t, model::Event>& into) {
    size_t at = 0;
    while (bytes.size() - at >= sizeof(Frame)) {
        Frame frame;
        std::memcpy(&frame, bytes.data() + at, sizeof frame);
        at += sizeof frame;
        if (frame.version != version || frame.length > bytes.size() - at) return;
        const std::string_view body(bytes.data() + at, frame.length);
        if (XXH3_64bits(body.data(), body.size()) != frame.checksum) return;
        auto event = decode<model::Event>(body);
        if (!event.ok()) return;
        into.insert_or_assign(event->seq, *std::move(event));
        at += frame.length;
    }
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventTail>> EventTail::open(FileSystem& files,
                                                           const std::string& file, int64_t runId,
                                                           const std::string& uuid) {
    std::unique_ptr<EventTail> tail(new EventTail(
        files, XXH3_64bits_withSeed(uuid.data(), uuid.size(), model::modelFingerprint())));
    std::map<uint64_t, model::Event> left;
    for (size_t i = 0; i < 2; ++i) {
        Part& part = tail->parts_[i];
        part.path = model::concat(file, "-tail-", runId, i == 0 ? "-a" : "-b");
        auto opened = files.open(part.path);
        if (!opened.ok())
            return absl::UnavailableError(model::concat(std::string(opened.status().message()),
                                                        "; check that the folder may be written"));
        part.file = *std::move(opened);
        auto bytes = files.read(part.path);
        if (!bytes.ok()) return bytes.status();
        readFrames(*bytes, tail->version_, left);
    }
    for (auto& [seq, event] : left) tail->left_.push_back(std::move(event));
    return tail;
}

EventTail::~EventTail() {
    for (Part& part : parts_)
        if (remove_) (void)files_.remove(part.path);
}

absl::Status EventTail::add(const model::Event& event) {
    const std::string body = encode(event);
    const Frame frame{version_, XXH3_64bits(body.data(), body.size()), body.size()};
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
    bytes += body;
    return parts_[active_].file->append(bytes);
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
    // Events that stay in the file are read again and skipped by their seq.
    if (part.file->size() > 0) (void)part.file->truncate(0);
}

}  // namespace bulkhead::history
