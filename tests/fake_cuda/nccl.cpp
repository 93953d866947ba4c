// SPDX-License-Identifier: Apache-2.0
// NCCL for tests: ranks of one machine, each on a GPU of its own, exchange bytes through a file in
// shared memory. As NCCL it is told what to do by a stream, reaches a peer for the first time when
// it is first needed, by calls that wait for an idle GPU, and waits for a peer until it is aborted.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"

namespace {

using bulkhead::fake_cuda::Kernel;

constexpr int kMostRanks = 8;
constexpr size_t kRoom = 64 << 10;

/// Bytes on their way from one rank to another: the writer writes `written`, the reader `taken`.
struct Pipe {
    std::atomic<uint64_t> written, taken;
    std::byte data[kRoom];
};
struct Meeting {
    std::atomic<int32_t> came;
    char gpu[kMostRanks][16];
    Pipe pipes[kMostRanks][kMostRanks];  ///< from, to
};

struct Transfer {
    bool out = false;
    int peer = 0;
    std::byte* at = nullptr;
    size_t left = 0;
};

}  // namespace

struct ncclComm {
    int rank = 0, size = 0;
    Meeting* meeting = nullptr;
    std::string path;
    std::set<int> reached;
    std::atomic<bool> aborted{false};
    std::atomic<int> launched{0};  ///< kernels that have not ended
    Kernel kernel;
    std::vector<Transfer> next;  ///< that the kernel will do

    ~ncclComm() {
        if (meeting != nullptr) ::munmap(meeting, sizeof *meeting);
        ::unlink(path.c_str());  // all ranks that joined have it mapped
    }

    bool move(Transfer& t) const {
        Pipe& pipe = t.out ? meeting->pipes[rank][t.peer] : meeting->pipes[t.peer][rank];
        const uint64_t written = pipe.written, taken = pipe.taken;
        const size_t now =
            std::min<size_t>(t.left, t.out ? kRoom - (written - taken) : written - taken);
        for (size_t i = 0; i < now; ++i) {
            if (t.out)
                pipe.data[(written + i) % kRoom] = t.at[i];
            else
                t.at[i] = pipe.data[(taken + i) % kRoom];
        }
        if (t.out)
            pipe.written = written + now;
        else
            pipe.taken = taken + now;
        t.at += now;
        t.left -= now;
        return now > 0;
    }
    void run(std::vector<Transfer> all) const {
        while (!aborted) {
            bool moved = false;
            for (Transfer& t : all) moved = move(t) || moved;
            std::erase_if(all, [](const Transfer& t) { return t.left == 0; });
            if (all.empty()) return;
            if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }
};

namespace {

/// Calls of this thread between ncclGroupStart and ncclGroupEnd.
struct Pending {
    int depth = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<Transfer> transfers;
};
thread_local Pending pending;

ncclResult_t launch() {
    const Pending group = std::exchange(pending, {});
    ncclComm_t comm = group.comm;
    if (comm == nullptr) return ncclSuccess;
    for (const Transfer& t : group.transfers)
        if (comm->reached.insert(t.peer).second) {
            void* buffers = nullptr;
            if (cudaMalloc(&buffers, kRoom) != cudaSuccess || cudaFree(buffers) != cudaSuccess)
                return ncclSystemError;
        }
    comm->next = group.transfers;
    return cudaLaunchKernel(&comm->kernel, 1, 32, nullptr, 0, group.stream) == cudaSuccess
               ? ncclSuccess
               : ncclSystemError;
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const Transfer& transfer) {
    if (transfer.peer < 0 || transfer.peer >= comm->size) return ncclInvalidArgument;
    pending.comm = comm;
    pending.stream = stream;
    pending.transfers.push_back(transfer);
    return pending.depth > 0 ? ncclSuccess : launch();
}

std::byte* bytes(const void* at) {
    return static_cast<std::byte*>(const_cast<void*>(at));
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = 22'800;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* out) {
    std::random_device random;
    *out = {};
    std::snprintf(out->internal, sizeof out->internal, "/dev/shm/fake-nccl-%d-%08x%08x", ::getpid(),
                  random(), random());
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    if (size > kMostRanks || rank < 0 || rank >= size || config->blocking != 0)
        return ncclInvalidArgument;
    auto comm = std::make_unique<ncclComm>();
    comm->rank = rank;
    comm->size = size;
    comm->path = id.internal;
    const int fd = ::open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(Meeting)) != 0) return ncclSystemError;
    void* at = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at == MAP_FAILED) return ncclSystemError;
    comm->meeting = static_cast<Meeting*>(at);
    cudaPointerAttributes here{};
    void* some = nullptr;
    cudaDeviceProp properties{};
    if (cudaMalloc(&some, 1) != cudaSuccess ||
        cudaPointerGetAttributes(&here, some) != cudaSuccess || cudaFree(some) != cudaSuccess ||
        cudaGetDeviceProperties(&properties, here.device) != cudaSuccess)
        return ncclSystemError;
    std::memcpy(comm->meeting->gpu[rank], properties.uuid.bytes, sizeof properties.uuid.bytes);
    comm->kernel.prepare = [raw = comm.get()](unsigned, void**) -> std::function<void()> {
        ++raw->launched;
        return [raw, all = std::exchange(raw->next, {})] {
            raw->run(all);
            --raw->launched;
        };
    };
    ++comm->meeting->came;
    *out = comm.release();
    return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* out) {
    const Meeting& meeting = *comm->meeting;
    *out = meeting.came < comm->size ? ncclInProgress : ncclSuccess;
    for (int a = 0; *out == ncclSuccess && a < comm->size; ++a)
        for (int b = 0; b < a; ++b)
            if (std::memcmp(meeting.gpu[a], meeting.gpu[b], sizeof meeting.gpu[a]) == 0)
                *out = ncclInvalidArgument;  // one GPU twice
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = true;
    while (comm->launched > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return ncclCommAbort(comm);
}
const char* ncclGetErrorString(ncclResult_t code) {
    return code == ncclInvalidArgument ? "invalid argument" : "an error of the fake NCCL";
}
const char* ncclGetLastError(ncclComm_t) {
    return "";
}

ncclResult_t ncclGroupStart() {
    ++pending.depth;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    return --pending.depth > 0 ? ncclSuccess : launch();
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add(comm, stream, {true, peer, bytes(from), count});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add(comm, stream, {false, peer, bytes(to), count});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    (void)ncclGroupStart();
    for (int r = 0; r < comm->size; ++r) {
        (void)ncclSend(from, count, type, r, comm, stream);
        (void)ncclRecv(bytes(to) + static_cast<size_t>(r) * count, count, type, r, comm, stream);
    }
    return ncclGroupEnd();
}

}  // extern "C"
