// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_fetch.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

constexpr int kFailuresPerSource = 3;
/// A delta's first answer has so much of it where several connections share the rest.
constexpr uint64_t kFirstPart = 4 << 20;
constexpr uint64_t kHashedByOne = 64 << 20;

absl::Status named(const FetchSource& source, const absl::Status& s) {
    return absl::Status(
        s.code(), absl::StrCat("r", source.replica, " (", source.address, "): ", s.message()));
}

/// bulkhead_state_hash(), by so many threads where that pays.
uint64_t hashOf(const StateBytes& state, size_t threads) {
    if (state.size() < kHashedByOne) return bulkhead_state_hash(state.data(), state.size());
    std::vector<uint64_t> digests((state.size() + BULKHEAD_STATE_PIECE - 1) / BULKHEAD_STATE_PIECE);
    {
        std::vector<Thread> all;
        for (size_t t = 0; t < threads; ++t)
            all.emplace_back([&, t] {
                for (size_t i = digests.size() * t / threads;
                     i < digests.size() * (t + 1) / threads; ++i)
                    digests[i] = bulkhead_piece_hash(state.data(), state.size(), i);
            });
        for (Thread& t : all) t.join();
    }
    return XXH3_64bits(digests.data(), digests.size() * sizeof(uint64_t));
}

}  // namespace

/// While it lives, cancel() reaches this stream.
class StateFetch::InUse {
  public:
    InUse(StateFetch* fetch, StateStream* stream) : fetch_(fetch), stream_(stream) {
        const MutexLock lock(fetch_->mutex_);
        fetch_->waiting_.push_back(stream_);
    }
    ~InUse() {
        const MutexLock lock(fetch_->mutex_);
        std::erase(fetch_->waiting_, stream_);
    }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

  private:
    StateFetch* const fetch_;
    StateStream* const stream_;
};

StateFetch::StateFetch(FetchOptions options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), key_(options_.key) {}

StateFetch::~StateFetch() = default;

void StateFetch::recycle(Floats memory) {
    const MutexLock lock(mutex_);
    spare_.push_back(std::move(memory));
}

void StateFetch::setKey(const Secret& key) {
    const MutexLock lock(mutex_);
    key_ = key;
}

Credential StateFetch::credential() const {
    const MutexLock lock(mutex_);
    return joinerCredential(key_);
}

void StateFetch::cancel() {
    const MutexLock lock(mutex_);
    cancelled_ = true;
    for (StateStream* stream : waiting_) stream->shutdown();
    changed_.notify_all();
}

StateRequest StateFetch::request(StateAsk ask, uint64_t step) const {
    StateRequest r;
    r.shard = options_.shard;
    r.lineage = options_.lineage;
    r.ask = ask;
    r.step = step;
    return r;
}

absl::StatusOr<StateAnswer> StateFetch::ask(Link* link, const StateRequest& request) {
    if (options_.cut && options_.cut()) {
        link->stream.reset();
        return absl::UnavailableError("the network is cut");
    }
    if (link->stream == nullptr) {
        absl::StatusOr<std::unique_ptr<StateStream>> stream =
            options_.network->connect(link->source.address, credential(), options_.timeoutMs);
        if (!stream.ok()) return stream.status();
        link->stream = *std::move(stream);
    }
    link->stream->setTimeout(options_.timeoutMs + request.patienceMs);
    const absl::StatusOr<StateAnswer> answer = [&]() -> absl::StatusOr<StateAnswer> {
        const InUse use(this, link->stream.get());
        if (cancelled_) return absl::AbortedError("the fetch was cancelled");
        if (absl::Status s = link->stream->sendHeader(request); !s.ok()) return s;
        return link->stream->receiveHeader<StateAnswer>();
    }();
    if (!answer.ok()) {
        link->stream.reset();
        return cancelled_ ? absl::AbortedError("the fetch was cancelled") : answer.status();
    }
    if (!answer->error.empty())
        return answer->gone ? absl::NotFoundError(answer->error)
                            : absl::FailedPreconditionError(answer->error);
    return answer;
}

void StateFetch::adopt(const StateAnswer& answer) {
    state_ = std::make_shared<StateSnapshot>();
    state_->lineage = options_.lineage;
    state_->step = answer.step;
    state_->layout = answer.layout;
    state_->expertShard = answer.expertShard;
    state_->hash = answer.stateHash;
    if (answer.record) state_->last = *answer.record;
    if (options_.room != nullptr)
        state_->bytes = options_.room(answer.totalBytes);
    else
        state_->bytes.resize(answer.totalBytes);
    pieces_.clear();
    for (uint64_t at = 0; at < answer.totalBytes; at += options_.pieceBytes)
        pieces_.push_back({at, std::min(options_.pieceBytes, answer.totalBytes - at)});
}

bool StateFetch::complete() const {
    return std::all_of(pieces_.begin(), pieces_.end(), [](const Piece& p) { return p.done; });
}

absl::Status StateFetch::describe(std::vector<Link>* links) {
    std::vector<std::string> reasons;
    bool allGone = true;
    std::vector<Link> usable;
    for (Link& link : *links) {
        absl::StatusOr<StateAnswer> answer =
            ask(&link, request(StateAsk::kDescribe, options_.step));
        if (cancelled_) return absl::AbortedError("the fetch was cancelled");
        if (!answer.ok()) {
            allGone = allGone && absl::IsNotFound(answer.status());
            reasons.push_back(std::string(named(link.source, answer.status()).message()));
            continue;
        }
        if (answer->layout != options_.layout) {
            allGone = false;
            reasons.push_back(absl::StrCat("r", link.source.replica, ": holds layout ",
                                           answer->layout, ", not ", options_.layout));
            continue;
        }
        if (state_ == nullptr) adopt(*answer);
        if (answer->stateHash != state_->hash || answer->totalBytes != state_->bytes.size()) {
            allGone = false;
            reasons.push_back(
                absl::StrCat("r", link.source.replica, ": holds another state of this step"));
            continue;
        }
        usable.push_back(std::move(link));
    }
    *links = std::move(usable);
    if (!links->empty()) return absl::OkStatus();
    const std::string why =
        absl::StrCat("no source for the state of step ", options_.step, ": ",
                     reasons.empty() ? "none was named" : absl::StrJoin(reasons, "; "));
    return allGone && !reasons.empty() ? absl::NotFoundError(why) : absl::UnavailableError(why);
}

absl::StatusOr<std::shared_ptr<const StateSnapshot>> StateFetch::run(
    const std::vector<FetchSource>& sources) {
    std::vector<Link> links;
    for (const FetchSource& source : sources) links.push_back({source, nullptr, 0});
    if (absl::Status s = describe(&links); !s.ok()) return s;
    for (size_t more = links.size() * (connectionsEach(links.size()) - 1), i = 0; i < more; ++i)
        links.push_back({links[i].source, nullptr, 0});
    std::vector<absl::Status> ends(links.size());
    {
        std::vector<Thread> threads;
        for (size_t i = 0; i < links.size(); ++i)
            threads.emplace_back([&, i] { ends[i] = pull(&links[i]); });
        for (Thread& t : threads) t.join();
    }
    for (const Link& link : links) {
        const auto of =
            std::ranges::find(bySource_, link.source.replica, &std::pair<int32_t, uint64_t>::first);
        if (of == bySource_.end())
            bySource_.emplace_back(link.source.replica, link.bytes);
        else
            of->second += link.bytes;
    }
    if (cancelled_) return absl::AbortedError("the fetch was cancelled");
    if (!complete()) {
        std::vector<std::string> reasons;
        for (const absl::Status& s : ends)
            if (std::ranges::find(reasons, s.message()) == reasons.end())
                reasons.push_back(std::string(s.message()));
        const bool gone = std::all_of(ends.begin(), ends.end(), absl::IsNotFound);
        const std::string why = absl::StrCat("the state of step ", options_.step,
                                             " is not complete: ", absl::StrJoin(reasons, "; "));
        return gone ? absl::NotFoundError(why) : absl::UnavailableError(why);
    }
    if (hashOf(state_->bytes, links.size()) != state_->hash)
        return absl::DataLossError(absl::StrCat("the state of step ", options_.step,
                                                " does not have the hash its sources named"));
    return std::exchange(state_, nullptr);
}

StateFetch::Piece* StateFetch::takePiece() {
    MutexLock lock(mutex_);
    for (;;) {
        if (cancelled_) return nullptr;
        bool pending = false;
        for (Piece& piece : pieces_) {
            if (!piece.done && !piece.taken) {
                piece.taken = true;
                return &piece;
            }
            pending = pending || !piece.done;
        }
        if (!pending) return nullptr;
        changed_.wait(lock);  // another source may yet give its piece back
    }
}

absl::Status StateFetch::pull(Link* link) {
    int failures = 0;
    while (Piece* piece = takePiece()) {
        pace(piece->bytes);
        const absl::Status s = pullPiece(link, piece);
        {
            const MutexLock lock(mutex_);
            piece->taken = false;
            piece->done = s.ok();
            if (s.ok()) {
                link->bytes += piece->bytes;
                bytesDone_ += piece->bytes;
                if (options_.progress) options_.progress(bytesDone_, state_->bytes.size());
            }
            changed_.notify_all();
        }
        if (s.ok()) continue;
        if (absl::IsNotFound(s) || ++failures >= kFailuresPerSource) return named(link->source, s);
    }
    return absl::OkStatus();
}

absl::Status StateFetch::pullPiece(Link* link, Piece* piece) {
    StateRequest r = request(StateAsk::kPiece, options_.step);
    r.offset = piece->offset;
    r.bytes = piece->bytes;
    absl::StatusOr<StateAnswer> answer = ask(link, r);
    if (!answer.ok()) return answer.status();
    if (answer->offset != piece->offset || answer->bytes != piece->bytes) {
        link->stream.reset();
        return absl::DataLossError("another piece than asked for");
    }
    return receive(link, *answer, state_->bytes.data() + piece->offset);
}

absl::Status StateFetch::receive(Link* link, const StateAnswer& answer, std::byte* to) {
    if (absl::Status s = link->stream->receiveAll(to, answer.bytes); !s.ok()) {
        link->stream.reset();
        return s;
    }
    if (XXH3_64bits(to, answer.bytes) != answer.checksum)
        return absl::DataLossError(
            absl::StrCat("the piece at ", answer.offset, " does not match its checksum"));
    return absl::OkStatus();
}

size_t StateFetch::connectionsEach(size_t sources) const {
    return sources == 0 ? 1 : std::max<size_t>((options_.connections + sources - 1) / sources, 1);
}

void StateFetch::pace(uint64_t bytes) {
    if (options_.bytesPerSecond == 0) return;
    MutexLock lock(mutex_);
    const MonoNs now = clock_.now();
    const MonoNs start = std::max(now, nextSendNs_);
    nextSendNs_ = start + static_cast<MonoNs>(static_cast<double>(bytes) * kSecond /
                                              static_cast<double>(options_.bytesPerSecond));
    changed_.wait_for(lock, std::chrono::nanoseconds(start - now),
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                          return cancelled_.load() || clock_.now() >= start;
                      });
}

absl::StatusOr<Delta> StateFetch::delta(uint64_t step, const std::vector<FetchSource>& sources,
                                        uint32_t patienceMs) {
    const size_t each = connectionsEach(sources.size());
    bool same = deltaLinks_.size() == sources.size() * each;
    for (size_t i = 0; same && i < deltaLinks_.size(); ++i)
        same = deltaLinks_[i].source.address == sources[i / each].address;
    if (!same) {
        deltaLinks_.clear();
        for (const FetchSource& source : sources)
            for (size_t i = 0; i < each; ++i) deltaLinks_.push_back({source, nullptr, 0});
    }
    std::vector<std::string> reasons;
    bool allGone = !sources.empty();
    for (size_t i = 0; i < sources.size(); ++i) {
        // Another source first for each step, so that the joiner leans on nobody in particular.
        const size_t source = (step + i) % sources.size();
        absl::StatusOr<Delta> delta =
            deltaFrom(std::span(deltaLinks_).subspan(source * each, each), step, patienceMs);
        if (cancelled_) return absl::AbortedError("the fetch was cancelled");
        if (delta.ok()) return delta;
        allGone = allGone && absl::IsNotFound(delta.status());
        reasons.push_back(std::string(named(sources[source], delta.status()).message()));
    }
    const std::string why =
        absl::StrCat("no delta of step ", step, ": ", absl::StrJoin(reasons, "; "));
    return allGone ? absl::NotFoundError(why) : absl::UnavailableError(why);
}

absl::StatusOr<Delta> StateFetch::deltaFrom(std::span<Link> links, uint64_t step,
                                            uint32_t patienceMs) {
    const auto part = [&](Link* link, uint64_t at, uint64_t bytes,
                          uint32_t patience) -> absl::StatusOr<StateAnswer> {
        StateRequest r = request(StateAsk::kDelta, step);
        r.offset = at;
        r.bytes = bytes;
        r.patienceMs = patience;
        absl::StatusOr<StateAnswer> answer = ask(link, r);
        if (answer.ok() &&
            (!answer->record || answer->record->step != step || answer->offset != at ||
             answer->bytes !=
                 std::min(bytes, answer->totalBytes - std::min(at, answer->totalBytes)) ||
             answer->totalBytes % sizeof(float) != 0)) {
            link->stream.reset();
            return absl::DataLossError("another delta than asked for");
        }
        return answer;
    };
    const uint64_t most = links.size() == 1 ? std::numeric_limits<uint64_t>::max() : kFirstPart;
    const absl::StatusOr<StateAnswer> first = part(&links[0], 0, most, patienceMs);
    if (!first.ok()) return first.status();
    Delta delta{*first->record, {}};
    {
        const MutexLock lock(mutex_);
        if (!spare_.empty()) {
            delta.reduced = std::move(spare_.back());
            spare_.pop_back();
        }
    }
    delta.reduced.resize(first->totalBytes / sizeof(float));
    auto* to = reinterpret_cast<std::byte*>(delta.reduced.data());
    if (absl::Status s = receive(&links[0], *first, to); !s.ok()) return s;
    const uint64_t left = first->totalBytes - first->bytes;
    if (left == 0) return delta;
    const auto rest = [&](Link* link, uint64_t at, uint64_t bytes) -> absl::Status {
        const absl::StatusOr<StateAnswer> answer = part(link, at, bytes, 0);
        if (!answer.ok()) return answer.status();
        // The memory has no other contents than what comes.
        if (answer->totalBytes != first->totalBytes || answer->record != first->record) {
            link->stream.reset();
            return absl::DataLossError("the delta changed while it was fetched");
        }
        return receive(link, *answer, to + at);
    };
    std::vector<absl::Status> ends(links.size());
    {
        std::vector<Thread> threads;
        for (size_t i = 0; i < links.size(); ++i)
            threads.emplace_back([&, i] {
                const uint64_t at = first->bytes + left * i / links.size();
                const uint64_t end = first->bytes + left * (i + 1) / links.size();
                ends[i] = rest(&links[i], at, end - at);
            });
        for (Thread& t : threads) t.join();
    }
    for (const absl::Status& end : ends)
        if (!end.ok()) return end;
    return delta;
}

}  // namespace bulkhead::runtime
