// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/common/codec.h"
#include "backend/front/front.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/protocol/channels.h"
#include "backend/runtime/protocol/commit_log.h"
#include "backend/runtime/protocol/replica_fold.h"
#include "backend/runtime/replica/state_wire.h"
#include "backend/runtime/transport/control_frame.h"
#include "backend/runtime/transport/data_frame.h"
#include "backend/runtime/transport/tcp_connection.h"
#include "backend/runtime/transport/tls_session.h"
#include "tests/support/fuzz/targets.h"

/// The decoders of what comes over the network, by whoever may send to them: what is read before
/// anybody is known, and what a rank, an agent or a controller says that has its key and was taken
/// over. Beside them the commit log, whose entries are made of the same structs.
namespace bulkhead::attack {
namespace {

/// Ends the process, which is a finding, unless it holds.
void mustHold(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

/// A message that can be decoded is encoded to the same bytes again.
template <class T>
bool message(std::string_view bytes) {
    const auto value = decode<T>(bytes);
    if (!value.ok()) return false;
    mustHold(encode(*value) == bytes, "a message is read in another form than it is written in");
    return true;
}

/// A stream in two pieces, the first as long as its first byte says.
bool controlFrames(std::string_view bytes) {
    constexpr size_t kFirst = 64 << 10;
    runtime::ControlParser parser(kFirst);
    bool read = false;
    const size_t cut = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]) % bytes.size();
    for (const std::string_view piece : {bytes.substr(0, cut), bytes.substr(cut)}) {
        parser.append(piece);
        std::optional<std::string> next;
        do {
            if (!parser.next(next).ok()) return read;
            read = read || next.has_value();
        } while (next);
    }
    return read;
}

constexpr uint32_t kIncarnation = 3;

/// HTTP/2 of a stranger, in two pieces as above: gRPC has the beginning of it, and no call too
/// many.
bool httpFrames(std::string_view bytes) {
    constexpr size_t kMostBytes = 60'000;  // a socket takes that at once
    bytes = bytes.substr(0, kMostBytes);
    std::array<int, 2> pair{};
    mustHold(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()) == 0, "no sockets");
    const UniqueFd client(pair[0]);
    UniqueFd grpc;
    const auto now = front::Allowance::Time();
    const auto allowance = std::make_shared<front::Allowance>(front::Front::kStranger, now);
    front::Connection connection(
        UniqueFd(pair[1]), nullptr, std::make_shared<front::Share>(allowance),
        [&](front::Connection&, UniqueFd theirs) { grpc = std::move(theirs); });
    std::string passed;
    std::array<char, 1 << 16> piece;
    const size_t cut = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]) % bytes.size();
    for (const std::string_view part : {bytes.substr(0, cut), bytes.substr(cut)}) {
        (void)!::send(client.get(), part.data(), part.size(), MSG_NOSIGNAL);
        for (int i = 0; i < 8; ++i) {
            connection.pump(now);
            const ssize_t n = grpc.valid() ? ::recv(grpc.get(), piece.data(), piece.size(), 0) : 0;
            if (n > 0) passed.append(piece.data(), static_cast<size_t>(n));
        }
    }
    mustHold(bytes.starts_with(passed), "gRPC has other bytes than came");
    constexpr size_t kPreface = 24;
    constexpr size_t kHeader = 9;
    int calls = 0;
    for (size_t at = kPreface; at + kHeader <= passed.size();) {
        const auto byte = [&](size_t i) { return size_t{static_cast<uint8_t>(passed[at + i])}; };
        calls += byte(3) == 1 ? 1 : 0;
        at += kHeader + (byte(0) << 16 | byte(1) << 8 | byte(2));
    }
    mustHold(calls <= front::Front::kStranger.calls.atOnce, "gRPC has more calls than are allowed");
    return !passed.empty();
}

/// A leader with what one of its ranks says.
bool leader(std::string_view bytes) {
    const auto value = decode<protocol::ToLeader>(bytes);
    if (!value.ok()) return false;
    protocol::ReplicaFold fold(1, kIncarnation, 2);
    (void)fold.add(*value);
    return true;
}

bool commitLog(std::string_view bytes) {
    const auto log = protocol::decodeLog(bytes);
    return log.ok() && !log->entries.empty();
}

runtime::MeshIdentity identity() {
    runtime::MeshIdentity id;
    id.group = 1;
    id.term = 4;
    id.epoch = 6;
    id.members = 2;
    return id;
}

const Secret kGroup = Secret::ofText("group");
const Secret kOurs = Secret::ofText("ours");
const Secret kTheirs = Secret::ofText("theirs");

/// A listener's judgement; who does not know the secret is never let in.
bool dataHello(std::string_view bytes) {
    runtime::PeerHello hello;
    if (bytes.size() != sizeof hello) return false;
    std::memcpy(static_cast<void*>(&hello), bytes.data(), sizeof hello);
    if (!runtime::readable(hello)) return false;
    const auto verdict = runtime::judge(hello, identity(), kGroup, true);
    if (verdict != runtime::HelloVerdict::kAccepted) return false;
    mustHold(runtime::proven(hello, kGroup), "a hello was accepted that proves nothing");
    return true;
}

/// A round of an exchange with a peer that has the connection's key and sends what it likes: each
/// frame of the input is sealed as it stands, whatever its header says.
bool dataFrames(std::string_view bytes) {
    int fds[2];
    mustHold(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0, "no sockets");
    const UniqueFd far(fds[1]);
    runtime::TcpConnection connection(UniqueFd(fds[0]), identity(), 2, kIncarnation, kOurs, kTheirs,
                                      {1000, 4, runtime::Protection::kReadable});
    std::vector<std::byte> out(100), in(3000);
    connection.begin({5, 1, 3}, false, out, in);
    runtime::FrameSeal seal(kTheirs);
    while (bytes.size() >= sizeof(runtime::FrameHeader)) {
        runtime::FrameHeader header;
        std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
        bytes.remove_prefix(sizeof header);
        const size_t length = std::min<size_t>(header.length, bytes.size());
        const auto* payload = reinterpret_cast<const std::byte*>(bytes.data());
        const auto wire = seal.seal(header, {payload, length});
        bytes.remove_prefix(length);
        (void)!::send(far.get(), &header, sizeof header, MSG_NOSIGNAL);
        (void)!::send(far.get(), wire.data(), wire.size(), MSG_NOSIGNAL);
        if (!connection.advance(true).ok()) return false;
    }
    return connection.received();
}

std::string framesSeed() {
    std::string all;
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1000}, uint64_t{2000}}) {
        runtime::FrameHeader header;
        header.term = identity().term;
        header.epoch = identity().epoch;
        header.step = 5;
        header.attempt = 1;
        header.bucket = 3;
        header.incarnation = kIncarnation;
        header.sequence = 1;
        header.length = 1000;
        header.offset = offset;
        header.total = 3000;
        all.append(reinterpret_cast<const char*>(&header), sizeof header);
        all += std::string(1000, static_cast<char>('a' + offset / 1000));
    }
    return all;
}

std::string helloSeed() {
    runtime::PeerHello hello;
    hello.identity = identity();
    runtime::prove(hello, kGroup);
    return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

runtime::Credential credential() {
    return {"agent west", Secret::ofText("its key")};
}

/// A listener rejects bytes of a peer that claims to be its agent without proof.
bool tls(std::string_view bytes) {
    runtime::TlsSession session([](std::string_view) { return std::optional(credential().key); });
    std::string plain;
    const bool read = session.receive(bytes, plain).ok();
    mustHold(plain.empty(), "something was read of a session that was not proved");
    return read && !bytes.empty();
}

std::string tlsSeed() {
    runtime::TlsSession caller(credential());
    std::string none;
    (void)caller.receive("", none);
    return caller.takeOutput();
}

std::string controlSeed() {
    const std::string two = encode(protocol::ToCoordinator(protocol::Beat{}));
    return runtime::controlHeader("first") + "first" + runtime::controlHeader(two) + two;
}

std::string agentSeed() {
    runtime::AgentHello hello;
    hello.node = "west";
    hello.running.emplace_back();
    return encode(hello);
}

std::string answerSeed() {
    runtime::StateAnswer answer;
    answer.expertShard = {0, 1};
    answer.record.emplace();
    return encode(answer);
}

/// One of each alternative.
template <class V, size_t... I>
std::vector<std::string> eachOf(std::index_sequence<I...>) {
    return {encode(V(std::in_place_index<I>))...};
}
template <class V>
std::vector<std::string> eachOf() {
    return eachOf<V>(std::make_index_sequence<std::variant_size_v<V>>());
}

std::vector<std::string> leaderSeeds() {
    std::vector<std::string> seeds = eachOf<protocol::ToLeader>();
    protocol::RankVote vote;
    vote.rank = {1, 1};
    vote.incarnation = kIncarnation;
    vote.complete = true;
    vote.domainLossSum = {1, 2};
    vote.domainTokens = {3, 4};
    vote.expertCounts = {1, 2, 3, 4};
    vote.failedPeers = {2};
    seeds.push_back(encode(protocol::ToLeader(vote)));
    return seeds;
}

std::string httpSeed() {
    std::string text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (const char type : std::string("\4\1\1\0\6\x8\3\1\x9\1\1\1\1\1\1\1\2", 17))
        text += std::string("\0\0\4", 3) + type + std::string(5, '\0') + "four";
    return text;
}

std::string logSeed() {
    std::string log(protocol::kLogHeader);
    for (const protocol::LogEntry& entry :
         {protocol::LogEntry(protocol::LogCommit{}), protocol::LogEntry(protocol::LogCheckpoint{})})
        log += protocol::encodeEntry(entry);
    return log;
}

}  // namespace
}  // namespace bulkhead::attack

namespace bulkhead::fuzz {

using namespace attack;

const std::vector<Target>& targets() {
    static const std::vector<Target> kTargets = {
        {"control_frames", controlFrames, {controlSeed()}},
        {"to_coordinator", message<protocol::ToCoordinator>, eachOf<protocol::ToCoordinator>()},
        {"to_replica", message<protocol::ToReplica>, eachOf<protocol::ToReplica>()},
        {"to_leader", message<protocol::ToLeader>, eachOf<protocol::ToLeader>()},
        {"leader", leader, leaderSeeds()},
        {"agent_hello", message<runtime::AgentHello>, {agentSeed()}},
        {"agent_message", message<runtime::AgentMessage>, eachOf<runtime::AgentMessage>()},
        {"agent_command", message<runtime::AgentCommand>, eachOf<runtime::AgentCommand>()},
        {"state_request", message<runtime::StateRequest>, {encode(runtime::StateRequest{})}},
        {"state_answer", message<runtime::StateAnswer>, {answerSeed()}},
        {"data_hello", dataHello, {helloSeed()}},
        {"data_frames", dataFrames, {framesSeed()}},
        {"http_frames", httpFrames, {httpSeed()}},
        {"tls", tls, {tlsSeed()}},
        {"commit_log", commitLog, {logSeed()}},
    };
    return kTargets;
}

}  // namespace bulkhead::fuzz
