// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/rank_host.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "backend/runtime/replica/shm_lease.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/unique_fd.h"

namespace bulkhead::runtime {
namespace {

class SocketPort final : public DataPort {
  public:
    SocketPort(UniqueFd listener, std::unique_ptr<ShmLease> lease)
        : listener_(std::move(listener)), lease_(std::move(lease)) {}
    std::string address() const override { return localAddress(listener_.get()); }
    int listenFd() const override { return listener_.get(); }

  private:
    const UniqueFd listener_;
    const std::unique_ptr<ShmLease> lease_;
};

class LinuxRankHost final : public RankHost {
  public:
    FileSystem& files() override { return diskFiles(); }
    Network& network() override { return socketNetwork(); }
    StateNetwork& stateNetwork() override { return stateSockets(); }

    absl::StatusOr<std::unique_ptr<DataPort>> openData(const std::string& ip,
                                                       const std::string& shm) override {
        absl::StatusOr<UniqueFd> listener = listenOn(ip + ":0");
        if (!listener.ok()) return listener.status();
        if (const int removed = ShmLease::sweep(kShmFamily); removed > 0)
            spdlog::info("removed {} pieces of shared memory that killed ranks left behind",
                         removed);
        absl::StatusOr<std::unique_ptr<ShmLease>> lease = ShmLease::take(shm);
        if (!lease.ok()) return lease.status();
        return std::make_unique<SocketPort>(*std::move(listener), *std::move(lease));
    }

    absl::StatusOr<std::unique_ptr<Exchange>> exchange(ExchangeOptions options) override {
        return makeExchange(std::move(options));
    }

    int32_t pid() const override { return static_cast<int32_t>(::getpid()); }
    void signalSelf(int signal) override { ::kill(::getpid(), signal); }
};

}  // namespace

RankHost& linuxRankHost() {
    static LinuxRankHost host;
    return host;
}

}  // namespace bulkhead::runtime
