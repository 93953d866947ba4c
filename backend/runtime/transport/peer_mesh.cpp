// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/peer_mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/address.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kMaxStrangers = 128;
constexpr MonoNs kHelloTimeout = 2 * kSecond;
constexpr MonoNs kRetryAfter = 5 * kMillisecond;

std::string segmentName(const MeshPeer& peer, const MeshIdentity& identity) {
    return absl::StrCat(peer.shm, ".", absl::Hex(identity.group), "-", identity.term, "-",
                        identity.epoch, "-", identity.step, "-", identity.attempt);
}

/// Moves a fixed-size struct over a non-blocking socket, as far as it goes.
struct Courier {
    size_t at = 0;
    /// 1 done, 0 not yet, -1 broken.
    template <class T>
    int send(int fd, const T& value) {
        const auto* raw = reinterpret_cast<const std::byte*>(&value);
        const ssize_t n = ::send(fd, raw + at, sizeof value - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        return settle(n, sizeof value);
    }
    template <class T>
    int receive(int fd, T& value) {
        auto* raw = reinterpret_cast<std::byte*>(&value);
        const ssize_t n = ::recv(fd, raw + at, sizeof value - at, MSG_DONTWAIT);
        return n == 0 ? -1 : settle(n, sizeof value);
    }
    int settle(ssize_t n, size_t size) {
        if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
        at += static_cast<size_t>(n);
        return at == size ? 1 : 0;
    }
};

}  // namespace

/// The state of one connect(): attempts outwards, strangers that came in, segments not yet there.
class MeshBuilder {
  public:
    MeshBuilder(MeshSpec spec, const MeshContext& context)
        : context_(context), mesh_(new PeerMesh()) {
        mesh_->spec_ = std::move(spec);
        MeshSpec& mine = mesh_->spec_;
        mine.identity.group = hashBytes(mine.group.data(), mine.group.size());
        mine.identity.token = mine.secret.derive("segment").words[0];
        mine.identity.members = static_cast<uint32_t>(mine.peers.size());
        mesh_->views_.resize(mine.peers.size());
        mesh_->tcp_.resize(mine.peers.size());
        why_.resize(mine.peers.size());
        calls_.resize(mine.peers.size() * mine.connections);
        sockets_.resize(calls_.size());
        keys_.resize(calls_.size());
    }

    absl::StatusOr<std::unique_ptr<PeerMesh>> run(std::vector<MeshFailure>& failures) {
        if (absl::Status s = prepare(); !s.ok()) return s;
        const MonoNs deadline = context_.clock->now() + spec().timeout;
        while (true) {
            if (context_.abort->raised()) return context_.abort->why();
            if (!context_.isCut()) {
                attachSegments();
                acceptStrangers();
                hearStrangers();
                for (size_t i = 0; i < spec().self; ++i)
                    for (uint32_t c = 0; c < spec().connections && !overShm(i); ++c)
                        if (!socket(i, c).valid()) call(i, c);
            }
            if (allConnected()) break;
            for (size_t i = 0; i < spec().peers.size(); ++i)
                if (!connected(i)) mesh_->last_ = i;
            if (!refused_.ok() || context_.clock->now() >= deadline) return giveUp(failures);
            sleep();
        }
        takeSockets();
        if (mesh_->segment_) mesh_->segment_->announceAttached();
        return std::move(mesh_);
    }

  private:
    struct Call {
        UniqueFd fd;
        bool open = false;
        bool told = false;
        PeerHello hello;
        HelloReply reply;
        Courier courier;
        MonoNs notBefore = 0;
    };
    struct Stranger {
        UniqueFd fd;
        PeerHello hello;
        Courier courier;
        MonoNs deadline = 0;
    };

    const MeshSpec& spec() const { return mesh_->spec_; }
    const MeshPeer& peer(size_t i) const { return spec().peers[i]; }
    bool overShm(size_t i) const {
        return useSharedMemory(spec().choice, peer(spec().self).host, peer(i).host);
    }
    bool connected(size_t i) const {
        if (i == spec().self || overShm(i)) return i == spec().self || mesh_->views_[i] != nullptr;
        for (uint32_t c = 0; c < spec().connections; ++c)
            if (!sockets_[at(i, c)].valid()) return false;
        return true;
    }
    size_t at(size_t i, uint32_t connection) const { return i * spec().connections + connection; }
    UniqueFd& socket(size_t i, uint32_t connection) { return sockets_[at(i, connection)]; }
    bool allConnected() const {
        for (size_t i = 0; i < spec().peers.size(); ++i)
            if (!connected(i)) return false;
        return true;
    }

    absl::Status prepare() {
        if (spec().peers.empty() || spec().peers.size() > kMaxMembers ||
            spec().self >= spec().peers.size())
            return absl::InvalidArgumentError(
                absl::StrCat("a group has 1 to ", kMaxMembers, " members and we are one of them"));
        if (spec().connections < 1 || spec().connections > kMaxConnections)
            return absl::InvalidArgumentError(
                absl::StrCat("a pair has 1 to ", kMaxConnections, " connections"));
        bool shared = false;
        for (size_t i = 0; i < spec().peers.size(); ++i) {
            if (i == spec().self) continue;
            shared = shared || overShm(i);
            if (i > spec().self && !overShm(i) && spec().listenFd < 0)
                return absl::InvalidArgumentError("a peer comes over TCP but nothing listens");
        }
        if (!shared) return absl::OkStatus();
        const MeshPeer& me = peer(spec().self);
        if (me.shm.empty() || me.shm.find('/') != std::string::npos)
            return absl::InvalidArgumentError(absl::StrCat("shared-memory prefix \"", me.shm,
                                                           "\" must be a name without slashes"));
        auto segment = ShmSegment::create(
            segmentName(me, spec().identity), spec().identity, static_cast<uint32_t>(me.id),
            me.incarnation, spec().slotBytes, spec().heap == nullptr ? 0 : spec().heap->id());
        if (!segment.ok()) return segment.status();
        mesh_->segment_ = std::move(*segment);
        return absl::OkStatus();
    }

    void attachSegments() {
        for (size_t i = 0; i < spec().peers.size(); ++i) {
            if (connected(i) || !overShm(i)) continue;
            auto view = ShmView::open(segmentName(peer(i), spec().identity), spec().identity,
                                      static_cast<uint32_t>(peer(i).id), peer(i).incarnation,
                                      spec().slotBytes);
            if (view.ok()) {
                mesh_->views_[i] = std::move(*view);
                continue;
            }
            why_[i] = std::string(view.status().message());
            if (absl::IsPermissionDenied(view.status())) refuse(i, why_[i]);
        }
    }

    void refuse(size_t i, const std::string& why) {
        refusedBy_[i] = true;
        why_[i] = why;
        if (refused_.ok())
            refused_ = absl::PermissionDeniedError(absl::StrCat("peer ", peer(i).id, ": ", why));
    }

    void acceptStrangers() {
        if (spec().listenFd < 0) return;
        while (strangers_.size() < kMaxStrangers) {
            UniqueFd fd(::accept4(spec().listenFd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (!fd.valid()) return;
            Stranger stranger;
            stranger.fd = std::move(fd);
            stranger.deadline = context_.clock->now() + kHelloTimeout;
            strangers_.push_back(std::move(stranger));
        }
    }

    void hearStrangers() {
        const MonoNs now = context_.clock->now();
        std::erase_if(strangers_, [&](Stranger& s) {
            const int heard = s.courier.receive(s.fd.get(), s.hello);
            if (heard > 0) admit(s);
            return heard != 0 || now >= s.deadline;
        });
    }

    void admit(Stranger& stranger) {
        const PeerHello& hello = stranger.hello;
        if (!readable(hello)) return;
        // Recorded and sent again, it would take the place of the connection that it began.
        if (answered_.contains({hello.nonce[0], hello.nonce[1]})) return;
        size_t who = spec().peers.size();
        for (size_t i = spec().self + 1; i < spec().peers.size(); ++i)
            if (peer(i).id == hello.from && peer(i).incarnation == hello.incarnation) who = i;
        const bool toMe = who < spec().peers.size() && hello.to == peer(spec().self).id &&
                          hello.connection < spec().connections && !overShm(who);
        HelloReply reply;
        reply.verdict = judge(hello, spec().identity, spec().secret, toMe);
        reply.incarnation = peer(spec().self).incarnation;
        prove(reply, hello, spec().secret);
        // A fresh socket has room for 48 bytes; if not, the caller tries again.
        Courier courier;
        if (courier.send(stranger.fd.get(), reply) != 1) return;
        if (reply.verdict == HelloVerdict::kAccepted) {
            answered_.insert({hello.nonce[0], hello.nonce[1]});
            socket(who, hello.connection) = std::move(stranger.fd);
            keys_[at(who, hello.connection)] = connectionKeys(hello, reply, spec().secret);
        }
    }

    void takeSockets() {
        for (size_t i = 0; i < spec().peers.size(); ++i) {
            if (i == spec().self || overShm(i)) continue;
            std::vector<std::unique_ptr<TcpConnection>> connections;
            for (uint32_t c = 0; c < spec().connections; ++c) {
                const ConnectionKeys& keys = keys_[at(i, c)];
                const bool called = i < spec().self;
                connections.push_back(std::make_unique<TcpConnection>(
                    std::move(socket(i, c)), spec().identity, peer(spec().self).incarnation,
                    peer(i).incarnation, called ? keys.ofCaller : keys.ofListener,
                    called ? keys.ofListener : keys.ofCaller, spec().tcp));
            }
            mesh_->tcp_[i] =
                std::make_unique<TcpPeer>(std::move(connections), spec().tcp.chunkBytes);
        }
    }

    void retry(size_t i, uint32_t c, const std::string& why) {
        why_[i] = why;
        calls_[at(i, c)] = Call{};
        calls_[at(i, c)].notBefore = context_.clock->now() + kRetryAfter;
    }

    void call(size_t i, uint32_t c) {
        Call& call = calls_[at(i, c)];
        if (context_.clock->now() < call.notBefore) return;
        if (!call.fd.valid() && !dial(i, c)) return;
        if (!call.open) {
            pollfd ready{call.fd.get(), POLLOUT, 0};
            if (::poll(&ready, 1, 0) != 1) return;
            if (const int error = socketError(call.fd.get()); error != 0)
                return retry(i, c, std::strerror(error));
            call.open = true;
        }
        if (!call.told) {
            const int sent = call.courier.send(call.fd.get(), call.hello);
            if (sent < 0) return retry(i, c, "closed during the handshake");
            if (sent == 0) return;
            call.told = true;
            call.courier = {};
        }
        const int heard = call.courier.receive(call.fd.get(), call.reply);
        if (heard < 0) return retry(i, c, "closed during the handshake");
        if (heard > 0) onReply(i, c);
    }

    bool dial(size_t i, uint32_t c) {
        absl::StatusOr<UniqueFd> fd = beginConnect(peer(i).data, "");
        if (!fd.ok()) {
            retry(i, c, std::string(fd.status().message()));
            return false;
        }
        Call& call = calls_[at(i, c)];
        call.fd = std::move(*fd);
        call.hello.identity = spec().identity;
        call.hello.from = peer(spec().self).id;
        call.hello.to = peer(i).id;
        call.hello.incarnation = peer(spec().self).incarnation;
        call.hello.connection = c;
        call.hello.identity.token = 0;
        prove(call.hello, spec().secret);
        return true;
    }

    void onReply(size_t i, uint32_t c) {
        Call& call = calls_[at(i, c)];
        if (!readable(call.reply)) return retry(i, c, "answered with bytes that are no handshake");
        switch (call.reply.verdict) {
            case HelloVerdict::kAccepted:
                if (!proven(call.reply, call.hello, spec().secret))
                    return retry(i, c, "answered without our exchange's secret");
                if (call.reply.incarnation != peer(i).incarnation)
                    return retry(i, c, absl::StrCat("is incarnation ", call.reply.incarnation));
                socket(i, c) = std::move(call.fd);
                keys_[at(i, c)] = connectionKeys(call.hello, call.reply, spec().secret);
                return;
            case HelloVerdict::kUnproven:
                return refuse(i, "has another secret for this exchange");
            case HelloVerdict::kOlder:
                return retry(i, c, "is in a later exchange");
            case HelloVerdict::kNotYet:
                return retry(i, c, "is still in an earlier exchange");
            default:
                return retry(i, c, "does not expect us");
        }
    }

    absl::Status giveUp(std::vector<MeshFailure>& failures) {
        std::string names;
        for (size_t i = 0; i < spec().peers.size(); ++i) {
            if (connected(i) || (!refused_.ok() && !refusedBy_[i])) continue;
            const MeshFault fault = refusedBy_[i] ? MeshFault::kRefused : MeshFault::kTimeout;
            failures.push_back({i, fault, why_[i].empty() ? "did not come" : why_[i]});
            absl::StrAppend(&names, names.empty() ? "" : "; ", peer(i).id, ": ",
                            failures.back().detail);
        }
        if (!refused_.ok()) return refused_;
        return absl::DeadlineExceededError(
            absl::StrCat("not connected after ", spec().timeout / kMillisecond, " ms to ", names));
    }

    void sleep() {
        std::vector<pollfd> waits{{context_.abort->fd(), POLLIN, 0}};
        // Segments appear without a signal, refused calls are tried again: both need a short tick.
        int ticks = 20;
        if (context_.isCut()) {
            ticks = 5;
        } else {
            if (spec().listenFd >= 0 && strangers_.size() < kMaxStrangers)
                waits.push_back({spec().listenFd, POLLIN, 0});
            for (const Stranger& s : strangers_) waits.push_back({s.fd.get(), POLLIN, 0});
            for (size_t i = 0; i < spec().peers.size(); ++i) {
                if (connected(i)) continue;
                if (overShm(i)) ticks = std::min(ticks, 2);
                if (i > spec().self || overShm(i)) continue;
                for (uint32_t c = 0; c < spec().connections; ++c) {
                    if (socket(i, c).valid()) continue;
                    const Call& call = calls_[at(i, c)];
                    if (!call.fd.valid()) {
                        ticks = std::min(ticks, 5);
                        continue;
                    }
                    const bool hearing = call.open && call.told;
                    waits.push_back(
                        {call.fd.get(), static_cast<short>(hearing ? POLLIN : POLLOUT), 0});
                }
            }
        }
        ::poll(waits.data(), waits.size(), ticks);
        if (context_.progress) context_.progress();
    }

    const MeshContext& context_;
    std::unique_ptr<PeerMesh> mesh_;
    std::vector<Call> calls_;        // by peer, then connection
    std::vector<UniqueFd> sockets_;  // established, likewise
    std::vector<ConnectionKeys> keys_;
    std::vector<Stranger> strangers_;
    std::set<std::pair<uint64_t, uint64_t>> answered_;  // nonces of hellos that were accepted
    std::vector<std::string> why_;
    bool refusedBy_[kMaxMembers] = {};
    absl::Status refused_;
};

absl::StatusOr<std::unique_ptr<PeerMesh>> PeerMesh::connect(MeshSpec spec,
                                                            const MeshContext& context,
                                                            std::vector<MeshFailure>& failures) {
    return MeshBuilder(std::move(spec), context).run(failures);
}

void PeerMesh::unlinkWhenAttached() {
    if (unlinked_ || segment_ == nullptr) return;
    for (const auto& view : views_)
        if (view != nullptr && !view->attached()) return;
    segment_->unlinkName();
    unlinked_ = true;
}

}  // namespace bulkhead::runtime
