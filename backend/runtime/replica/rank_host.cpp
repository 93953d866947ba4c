// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/rank_host.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "backend/common/unique_fd.h"
#include "backend/runtime/replica/shm_lease.h"
#include "backend/runtime/transport/address.h"

namespace bulkhead::runtime {
namespace {

/// The begin of every prefix that ranks claim: whose owners are dead is removed by others.
constexpr const char* kShmFamily = "bh-";

class SocketPort final : public DataPort {
  public:
    SocketPort(UniqueFd listener, std::string shm, std::unique_ptr<ShmLease> lease)
        : listener_(std::move(listener)), shm_(std::move(shm)), lease_(std::move(lease)) {}
    std::string address() const override { return localAddress(listener_.get()); }
    int listenFd() const override { return listener_.get(); }
    std::string shm() const override { return shm_; }

  private:
    const UniqueFd listener_;
    const std::string shm_;
    const std::unique_ptr<ShmLease> lease_;
};

class LinuxRankHost final : public RankHost {
  public:
    FileSystem& files() override { return diskFiles(); }
    Network& network() override { return socketNetwork(); }
    StateNetwork& stateNetwork() override { return stateSockets(); }

    absl::StatusOr<std::unique_ptr<DataPort>> openData(const std::string& ip,
                                                       const std::string& rank) override {
        absl::StatusOr<UniqueFd> listener = listenOn(ip + ":0");
        if (!listener.ok()) return listener.status();
        if (const int removed = ShmLease::sweep(kShmFamily); removed > 0)
            spdlog::info("removed {} pieces of shared memory that killed ranks left behind",
                         removed);
        // Drawn, for jobs of any name and token may share a machine.
        std::random_device random;
        std::string shm = absl::StrFormat("%s%08x%08x-%s", kShmFamily, random(), random(), rank);
        absl::StatusOr<std::unique_ptr<ShmLease>> lease = ShmLease::take(shm);
        if (!lease.ok()) return lease.status();
        return std::make_unique<SocketPort>(*std::move(listener), std::move(shm),
                                            *std::move(lease));
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
