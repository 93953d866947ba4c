// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kIdleMs = 60'000;
constexpr uint32_t kMaxPatienceMs = 10'000;
constexpr int kNice = 5;

StateAnswer refusal(const StateRequest& request, std::string why, bool gone) {
    StateAnswer answer;
    answer.step = request.step;
    answer.error = std::move(why);
    answer.gone = gone;
    return answer;
}

absl::Status send(StateSocket* socket, const StateAnswer& answer, const void* payload) {
    if (absl::Status s = socket->sendHeader(answer); !s.ok()) return s;
    return answer.bytes == 0 ? absl::OkStatus() : socket->sendAll(payload, answer.bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateServer>> StateServer::start(const std::string& host,
                                                                int32_t shard, StateStore* store) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    if (inet_pton(AF_INET, host.c_str(), &at.sin_addr) != 1)
        return absl::InvalidArgumentError(absl::StrCat("\"", host, "\" is no IPv4 address"));
    StateSocket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t size = sizeof(at);
    if (!listener.open() ||
        ::bind(listener.fd(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0 ||
        ::listen(listener.fd(), 64) != 0 ||
        ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
        return absl::UnavailableError(
            absl::StrCat("cannot serve state on ", host, ": ", std::strerror(errno)));
    std::string address = absl::StrCat(host, ":", ntohs(at.sin_port));
    return std::unique_ptr<StateServer>(
        new StateServer(std::move(listener), std::move(address), shard, store));
}

StateServer::StateServer(StateSocket listener, std::string address, int32_t shard,
                         StateStore* store)
    : listener_(std::move(listener)),
      address_(std::move(address)),
      shard_(shard),
      store_(store),
      acceptor_([this] { accept(); }) {}

StateServer::~StateServer() {
    stopping_ = true;
    listener_.shutdown();
    store_->close();
    acceptor_.join();
    for (Connection& c : connections_) c.socket.shutdown();
    for (Connection& c : connections_) c.thread.join();
}

void StateServer::setCut(bool cut) {
    cut_ = cut;
    if (!cut) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Connection& c : connections_) c.socket.shutdown();
}

void StateServer::accept() {
    while (!stopping_) {
        const int fd = ::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            return;  // shut down
        }
        StateSocket socket(fd);
        if (cut_ || stopping_) continue;
        const int one = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        socket.setTimeout(kIdleMs);
        const std::lock_guard<std::mutex> lock(mutex_);
        reap();
        Connection& connection = connections_.emplace_back();
        connection.socket = std::move(socket);
        connection.thread = std::thread([this, &connection] { serve(&connection); });
    }
}

void StateServer::reap() {
    connections_.remove_if([](Connection& c) {
        if (!c.done) return false;
        c.thread.join();
        return true;
    });
}

void StateServer::serve(Connection* connection) {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    while (!stopping_ && !cut_) {
        absl::StatusOr<StateRequest> request = connection->socket.receiveHeader<StateRequest>();
        if (!request.ok()) break;
        if (absl::Status s = answer(&connection->socket, *request); !s.ok()) break;
    }
    connection->socket.shutdown();
    connection->done = true;
}

absl::Status StateServer::answer(StateSocket* socket, const StateRequest& request) {
    if (request.version != kStateWireVersion)
        return send(socket,
                    refusal(request,
                            absl::StrCat("state wire version ", request.version, " is not ",
                                         kStateWireVersion),
                            false),
                    nullptr);
    if (!store_->tokenAllowed(request.token))
        return send(socket, refusal(request, "the token is not one of this epoch's joiners", false),
                    nullptr);
    if (request.shard != shard_)
        return send(socket,
                    refusal(request,
                            absl::StrCat("this is shard ", shard_, ", not ", request.shard), false),
                    nullptr);
    return request.ask == StateAsk::kDelta ? answerDelta(socket, request)
                                           : answerSnapshot(socket, request);
}

absl::Status StateServer::answerSnapshot(StateSocket* socket, const StateRequest& request) {
    const StateStore::SnapshotPtr snapshot = store_->snapshot(request.step);
    if (snapshot == nullptr || snapshot->lineage != request.lineage)
        return send(socket,
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
            return send(socket,
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
    return send(socket, answer, payload);
}

absl::Status StateServer::answerDelta(StateSocket* socket, const StateRequest& request) {
    const auto patience = std::chrono::milliseconds(std::min(request.patienceMs, kMaxPatienceMs));
    const StateStore::DeltaPtr delta = store_->awaitDelta(request.step, patience);
    if (delta == nullptr || delta->record.lineage != request.lineage) {
        const auto [first, last] = store_->window();
        return send(socket,
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
    answer.bytes = delta->reduced.size() * sizeof(float);
    answer.checksum = XXH3_64bits(delta->reduced.data(), answer.bytes);
    bytesServed_ += answer.bytes;
    return send(socket, answer, delta->reduced.data());
}

}  // namespace bulkhead::runtime
