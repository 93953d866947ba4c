// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_server.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kIdleMs = 60'000;
/// A connection that has not proved to be a joiner's by then is closed.
constexpr uint32_t kIntroductionMs = 5'000;
/// Far more than a job has joiners at a time; each has a thread.
constexpr size_t kMostConnections = 256;
/// Most connections that have proved nothing yet; the oldest of them gives way to one more.
constexpr ptrdiff_t kMostStrangers = 16;
constexpr std::chrono::milliseconds kAcceptAgain{100};
constexpr uint32_t kMaxPatienceMs = 10'000;

StateAnswer refusal(const StateRequest& request, std::string why, bool gone) {
    StateAnswer answer;
    answer.step = request.step;
    answer.error = std::move(why);
    answer.gone = gone;
    return answer;
}

absl::Status send(StateStream* stream, const StateAnswer& answer, const void* payload) {
    if (absl::Status s = stream->sendHeader(answer); !s.ok()) return s;
    return answer.bytes == 0 ? absl::OkStatus() : stream->sendAll(payload, answer.bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateServer>> StateServer::start(const std::string& host,
                                                                int32_t shard, StateStore* store,
                                                                StateNetwork& network) {
    absl::StatusOr<std::unique_ptr<StateListener>> listener =
        network.listen(host, [store](std::string_view identity) { return store->keyOf(identity); });
    if (!listener.ok()) return listener.status();
    return std::unique_ptr<StateServer>(new StateServer(*std::move(listener), shard, store));
}

StateServer::StateServer(std::unique_ptr<StateListener> listener, int32_t shard, StateStore* store)
    : listener_(std::move(listener)),
      address_(listener_->address()),
      shard_(shard),
      store_(store),
      acceptor_([this] { accept(); }) {}

StateServer::~StateServer() {
    stopping_ = true;
    listener_->shutdown();
    {
        const MutexLock lock(mutex_);
        stopped_.notify_all();
    }
    store_->close();
    acceptor_.join();
    setCut(true);
    std::list<Connection> all;
    {
        const MutexLock lock(mutex_);
        all.swap(connections_);
    }
    for (Connection& c : all)
        if (c.thread.joinable())
            c.thread.join();  // the acceptor may have been ended before it began
}

void StateServer::setCut(bool cut) {
    cut_ = cut;
    if (!cut) return;
    const MutexLock lock(mutex_);
    for (Connection& c : connections_)
        if (c.stream) c.stream->shutdown();
}

void StateServer::accept() {
    while (!stopping_) {
        absl::StatusOr<std::unique_ptr<StateStream>> stream = listener_->accept();
        MutexLock lock(mutex_);
        if (!stream.ok()) {
            // No descriptor or no memory is free: that passes.
            stopped_.wait_for(lock, kAcceptAgain, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                return stopping_.load();
            });
            continue;
        }
        if (cut_ || stopping_) continue;
        reap();
        lock.unlock();
        const bool room = makeRoom();
        lock.lock();
        if (!room) continue;
        (*stream)->setTimeout(kIntroductionMs);
        Connection& connection = connections_.emplace_back();
        connection.stream = *std::move(stream);
        connection.thread = Thread([this, &connection] { serve(&connection); });
    }
}

void StateServer::reap() {
    connections_.remove_if([](Connection& c) {
        if (!c.done) return false;
        c.thread.join();
        return true;
    });
}

/// False: all are joiners.
bool StateServer::makeRoom() {
    std::list<Connection> gone;  // its thread ends without the mutex held
    {
        const MutexLock lock(mutex_);
        const auto isStranger = [](const Connection& c) { return !c.proven && !c.done; };
        if (std::ranges::count_if(connections_, isStranger) < kMostStrangers)
            return connections_.size() < kMostConnections;
        const auto first = std::ranges::find_if(connections_, isStranger);
        if (first->stream) first->stream->shutdown();
        gone.splice(gone.end(), connections_, first);
    }
    gone.front().thread.join();
    return true;
}

void StateServer::serve(Connection* connection) {
    while (!stopping_ && !cut_) {
        absl::StatusOr<StateRequest> request = connection->stream->receiveHeader<StateRequest>();
        if (!request.ok()) break;
        if (!connection->proven.exchange(true)) connection->stream->setTimeout(kIdleMs);
        if (absl::Status s = answer(connection->stream.get(), *request); !s.ok()) break;
    }
    const MutexLock lock(mutex_);
    connection->stream.reset();
    connection->done = true;
}

absl::Status StateServer::answer(StateStream* stream, const StateRequest& request) {
    if (request.version != kStateWireVersion)
        return send(stream,
                    refusal(request,
                            absl::StrCat("state wire version ", request.version, " is not ",
                                         kStateWireVersion),
                            false),
                    nullptr);
    if (request.shard != shard_)
        return send(stream,
                    refusal(request,
                            absl::StrCat("this is shard ", shard_, ", not ", request.shard), false),
                    nullptr);
    return request.ask == StateAsk::kDelta ? answerDelta(stream, request)
                                           : answerSnapshot(stream, request);
}

absl::Status StateServer::answerSnapshot(StateStream* stream, const StateRequest& request) {
    const StateStore::SnapshotPtr snapshot = store_->snapshot(request.step);
    if (snapshot == nullptr || snapshot->lineage != request.lineage)
        return send(stream,
                    refusal(request,
                            absl::StrCat("no snapshot of step ", request.step, " of lineage ",
                                         request.lineage),
                            true),
                    nullptr);
    StateAnswer answer;
    answer.step = request.step;
    answer.totalBytes = snapshot->bytes.size();
    const void* payload = nullptr;
    if (request.ask == StateAsk::kDescribe) {
        answer.stateHash = snapshot->hash;
        answer.layout = snapshot->layout;
        answer.expertShard = snapshot->expertShard;
        answer.record = snapshot->last;
    } else {
        if (request.offset > answer.totalBytes ||
            request.bytes > answer.totalBytes - request.offset)
            return send(stream,
                        refusal(request,
                                absl::StrCat("bytes [", request.offset, ", +", request.bytes,
                                             ") of ", answer.totalBytes),
                                false),
                        nullptr);
        answer.offset = request.offset;
        answer.bytes = request.bytes;
        payload = snapshot->bytes.data() + request.offset;
        answer.checksum = XXH3_64bits(payload, answer.bytes);
    }
    bytesServed_ += answer.bytes;
    return send(stream, answer, payload);
}

absl::Status StateServer::answerDelta(StateStream* stream, const StateRequest& request) {
    const auto patience = std::chrono::milliseconds(std::min(request.patienceMs, kMaxPatienceMs));
    const StateStore::DeltaPtr delta = store_->awaitDelta(request.step, patience);
    if (delta == nullptr || delta->record.lineage != request.lineage) {
        const auto [first, last] = store_->window();
        return send(stream,
                    refusal(request,
                            absl::StrCat("no delta of step ", request.step, "; kept are ", first,
                                         " to ", last),
                            request.step < first),
                    nullptr);
    }
    StateAnswer answer;
    answer.step = request.step;
    answer.record = delta->record;
    answer.layout = delta->record.layout;
    answer.totalBytes = delta->reduced.size() * sizeof(float);
    answer.offset = std::min(request.offset, answer.totalBytes);
    answer.bytes = std::min(request.bytes, answer.totalBytes - answer.offset);
    const auto* payload = reinterpret_cast<const char*>(delta->reduced.data()) + answer.offset;
    answer.checksum = XXH3_64bits(payload, answer.bytes);
    bytesServed_ += answer.bytes;
    return send(stream, answer, payload);
}

}  // namespace bulkhead::runtime
