// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace {

using bulkhead::ConditionVariable;
using bulkhead::Mutex;
using bulkhead::MutexLock;

using bulkhead::fake_cuda::Counts;
using bulkhead::fake_cuda::Kernel;

constexpr size_t kPage = 4096;
constexpr size_t kGpuBytes = size_t{80} << 30;
constexpr int kProcessors = 16;
constexpr size_t kSharedBytes = 227 << 10;      // of one block, on a Hopper
constexpr size_t kUsualSharedBytes = 48 << 10;  // as long as its kernel is not allowed more

struct Block {
    bool onDevice = false;
    int gpu = 0;
    size_t bytes = 0;  ///< as asked for
    size_t whole = 0;  ///< as mapped
    int fd = -1;       ///< of device memory; a process that maps it has a lock on it as long
    bool imported = false;
};

/// Work is done in the order in which it was put, by a thread.
class Stream {
  public:
    explicit Stream(int gpu) : gpu(gpu), thread_([this] { serve(); }) {}
    ~Stream() {
        {
            const MutexLock lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    /// The number that this work has.
    uint64_t put(std::function<void()> work) {
        const MutexLock lock(mutex_);
        work_.push_back(std::move(work));
        changed_.notify_all();
        return ++put_;
    }
    bool done(uint64_t number) const {
        const MutexLock lock(mutex_);
        return done_ >= number;
    }
    uint64_t last() const {
        const MutexLock lock(mutex_);
        return put_;
    }
    void wait(uint64_t number) const {
        MutexLock lock(mutex_);
        changed_.wait(lock,
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= number; });
    }
    const int gpu;

  private:
    void serve() {
        MutexLock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                return ending_ || !work_.empty();
            });
            if (work_.empty()) return;
            const std::function<void()> work = std::move(work_.front());
            work_.pop_front();
            lock.unlock();
            work();
            lock.lock();
            ++done_;
            changed_.notify_all();
        }
    }
    mutable Mutex mutex_;
    mutable ConditionVariable changed_;
    std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
    uint64_t put_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

struct Event {
    Stream* stream = nullptr;
    uint64_t number = 0;
};

struct Gpu {
    int number = 0;  ///< in the node
    cudaError_t lost = cudaSuccess;
    std::unique_ptr<Stream> usual;
    std::set<const void*> loaded;
    std::map<const void*, size_t> shared;  ///< bytes that a kernel's blocks may have
};

std::string uuidOf(int number) {
    char text[64];
    std::snprintf(text, sizeof text, "GPU-b0000000-0000-4000-8000-%012d", number);
    return text;
}

class Driver {
  public:
    /// Never destroyed: threads of a process that ends may still call it.
    static Driver& get() {
        static auto* driver = new Driver;
        return *driver;
    }

    Mutex lock;
    std::vector<Gpu> gpus ABSL_GUARDED_BY(lock);
    std::set<Stream*> streams ABSL_GUARDED_BY(lock);
    std::map<std::byte*, Block> blocks ABSL_GUARDED_BY(lock);
    std::map<std::string, cudaError_t> failures ABSL_GUARDED_BY(lock);
    bool blocking ABSL_GUARDED_BY(lock) = false;
    std::atomic<uint64_t> launches{0}, bytesToHost{0}, synchronisations{0}, allocations{0};

    /// Fixed once the driver is made: asked without its lock, which a call that waits may hold.
    int count() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return static_cast<int>(gpus.size()); }
    /// The block around `at`, or none.
    std::map<std::byte*, Block>::iterator around(const void* at)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
        auto it = blocks.upper_bound(static_cast<std::byte*>(const_cast<void*>(at)));
        if (it == blocks.begin()) return blocks.end();
        --it;
        return static_cast<const std::byte*>(at) < it->first + it->second.whole ? it : blocks.end();
    }
    /// False: these bytes begin in a block and end outside.
    bool inside(const void* at, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
        const auto it = around(at);
        return it == blocks.end() ||
               bytes <= static_cast<size_t>(it->first + it->second.whole -
                                            static_cast<const std::byte*>(at));
    }
    Stream& streamOf(cudaStream_t stream, int gpu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
        if (stream != nullptr) return *reinterpret_cast<Stream*>(stream);
        if (gpus[static_cast<size_t>(gpu)].usual == nullptr)
            gpus[static_cast<size_t>(gpu)].usual = std::make_unique<Stream>(gpu);
        return *gpus[static_cast<size_t>(gpu)].usual;
    }
    bool known(cudaStream_t stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
        return stream == nullptr || streams.count(reinterpret_cast<Stream*>(stream)) > 0;
    }
    void waitForIdle(int gpu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
        ++synchronisations;
        Gpu& of = gpus[static_cast<size_t>(gpu)];
        if (of.lost != cudaSuccess) return;
        if (of.usual != nullptr) of.usual->wait(of.usual->last());
        for (const Stream* s : streams)
            if (s->gpu == gpu) s->wait(s->last());
    }

  private:
    Driver() {
        const char* many = std::getenv("BULKHEAD_FAKE_GPUS");
        const int all = many == nullptr ? 2 : std::atoi(many);
        const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
        const char* block = std::getenv("CUDA_LAUNCH_BLOCKING");
        blocking = block != nullptr && std::strcmp(block, "1") == 0;
        if (visible == nullptr) {
            for (int i = 0; i < all; ++i) add(i);
            return;
        }
        // The driver reads it likewise: the first invalid entry ends the list.
        const std::string list = visible;
        for (size_t at = 0; at <= list.size();) {
            const size_t end = std::min(list.find(',', at), list.size());
            const std::string entry = list.substr(at, end - at);
            int number = -1;
            for (int i = 0; i < all; ++i)
                if (entry == std::to_string(i) || entry == uuidOf(i)) number = i;
            if (number < 0) return;
            add(number);
            at = end + 1;
        }
    }
    void add(int number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock) {
        gpus.emplace_back();
        gpus.back().number = number;
    }
};

Driver& driver() {
    return Driver::get();
}
thread_local int current = 0;
thread_local cudaError_t lastError = cudaSuccess;

cudaError_t keep(cudaError_t code) {
    if (code != cudaSuccess) lastError = code;
    return code;
}

/// A call of `function`: nothing else of the process is in the driver meanwhile.
template <class Body>
cudaError_t call(const char* function, Body body) {
    Driver& d = driver();
    const MutexLock lock(d.lock);
    if (d.gpus.empty()) return keep(cudaErrorNoDevice);
    if (const auto it = d.failures.find(function); it != d.failures.end()) {
        const cudaError_t code = it->second;
        d.failures.erase(it);
        return keep(code);
    }
    if (const cudaError_t lost = d.gpus[static_cast<size_t>(current)].lost; lost != cudaSuccess)
        return keep(lost);
    return keep(body(d));
}

/// A call that may wait for an idle GPU.
template <class Body>
cudaError_t waitingCall(const char* function, Body body) {
    return call(function, [&](Driver& d) {
        d.lock.assertHeld();
        d.waitForIdle(current);
        return body(d);
    });
}

/// Puts `work` on the stream, and returns after it when `wait`.
cudaError_t put(const char* function, cudaStream_t stream, bool wait,
                const std::function<cudaError_t(Driver&)>& check, std::function<void()> work) {
    Stream* on = nullptr;
    uint64_t number = 0;
    const cudaError_t code = call(function, [&](Driver& d) {
        d.lock.assertHeld();
        if (!d.known(stream)) return cudaErrorInvalidResourceHandle;
        if (const cudaError_t bad = check(d); bad != cudaSuccess) return bad;
        on = &d.streamOf(stream, current);
        number = on->put(std::move(work));
        if (wait) ++d.synchronisations;
        return cudaSuccess;
    });
    if (code == cudaSuccess && wait) on->wait(number);
    return code;
}

std::byte* see(int fd, size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

void refuseIfMapped(int fd) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    if (::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) return;
    std::fprintf(stderr, "fake CUDA: process %d frees memory that another still maps\n",
                 ::getpid());
    std::abort();
}

void forget(std::map<std::byte*, Block>::iterator it) {
    const Block& block = it->second;
    if (block.onDevice) {
        if (!block.imported) refuseIfMapped(block.fd);
        ::munmap(it->first, block.whole);
        ::close(block.fd);
    } else {
        std::free(it->first);
    }
    Driver& d = driver();
    d.lock.assertHeld();
    d.blocks.erase(it);
}

struct Handle {
    int32_t pid, fd, gpu;
    uint64_t file;  ///< a descriptor's number is used again
};

}  // namespace

namespace bulkhead::fake_cuda {

Counts counts() {
    const Driver& d = driver();  // its lock may be held by a call that waits
    return {d.launches, d.bytesToHost, d.synchronisations, d.allocations};
}
void blockLaunches(bool block) {
    const MutexLock lock(driver().lock);
    driver().blocking = block;
}
void failNext(const std::string& function, cudaError_t code) {
    const MutexLock lock(driver().lock);
    driver().failures[function] = code;
}
void loseGpu(int gpu, cudaError_t code) {
    const MutexLock lock(driver().lock);
    driver().gpus[static_cast<size_t>(gpu)].lost = code;
}

}  // namespace bulkhead::fake_cuda

// ---- the runtime ------------------------------------------------------------------------------

extern "C" {

cudaError_t cudaGetLastError() {
    Driver& d = driver();
    const MutexLock lock(d.lock);
    const cudaError_t last = lastError;
    lastError = d.gpus.empty() ? cudaSuccess : d.gpus[static_cast<size_t>(current)].lost;
    return last;
}
const char* cudaGetErrorString(cudaError_t code) {
    switch (code) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorNoDevice:
            return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorECCUncorrectable:
            return "uncorrectable ECC error encountered";
        case cudaErrorNotReady:
            return "device not ready";
        default:
            return "an error of the fake runtime";
    }
}
cudaError_t cudaSetDevice(int device) {
    Driver& d = driver();
    const MutexLock lock(d.lock);
    if (d.gpus.empty()) return keep(cudaErrorNoDevice);
    if (device < 0 || static_cast<size_t>(device) >= d.gpus.size())
        return keep(cudaErrorInvalidDevice);
    current = device;
    return keep(d.gpus[static_cast<size_t>(device)].lost);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
    return call("cudaGetDeviceProperties", [&](Driver& d) {
        d.lock.assertHeld();
        if (device < 0 || static_cast<size_t>(device) >= d.gpus.size())
            return cudaErrorInvalidDevice;
        *out = {};
        const int number = d.gpus[static_cast<size_t>(device)].number;
        std::snprintf(out->name, sizeof out->name, "a GPU for tests, number %d", number);
        out->uuid.bytes[0] = static_cast<char>(0xb0);
        out->uuid.bytes[15] = static_cast<char>(number);
        out->totalGlobalMem = kGpuBytes;
        out->major = 9;
        out->multiProcessorCount = kProcessors;
        return cudaSuccess;
    });
}
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr attribute, int device) {
    return call("cudaDeviceGetAttribute", [&](Driver& d) {
        if (device < 0 || static_cast<size_t>(device) >= d.gpus.size())
            return cudaErrorInvalidDevice;
        if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
        *out = kProcessors;
        return cudaSuccess;
    });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call("cudaDeviceGetStreamPriorityRange", [&](Driver&) {
        *least = 0;
        *greatest = -5;
        return cudaSuccess;
    });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return call("cudaDeviceEnablePeerAccess", [&](Driver& d) {
        d.lock.assertHeld();
        static std::set<std::pair<int, int>> enabled;
        if (flags != 0) return cudaErrorInvalidValue;
        if (peer == current || peer < 0 || static_cast<size_t>(peer) >= d.gpus.size())
            return cudaErrorInvalidDevice;
        return enabled.insert({current, peer}).second ? cudaSuccess
                                                      : cudaErrorPeerAccessAlreadyEnabled;
    });
}

cudaError_t cudaMalloc(void** out, size_t bytes) {
    return waitingCall("cudaMalloc", [&](Driver& d) {
        d.lock.assertHeld();
        if (out == nullptr) return cudaErrorInvalidValue;
        if (bytes == 0) return *out = nullptr, cudaSuccess;
        if (bytes > kGpuBytes) return cudaErrorMemoryAllocation;
        Block block;
        block.onDevice = true;
        block.gpu = current;
        block.bytes = bytes;
        block.whole = (bytes + kPage - 1) / kPage * kPage;
        block.fd = ::memfd_create("gpu", MFD_CLOEXEC);
        if (block.fd < 0 || ::ftruncate(block.fd, static_cast<off_t>(block.whole)) != 0)
            return cudaErrorMemoryAllocation;
        std::byte* base = see(block.fd, block.whole);
        if (base == nullptr) return ::close(block.fd), cudaErrorMemoryAllocation;
        d.blocks[base] = block;
        ++d.allocations;
        *out = base;
        return cudaSuccess;
    });
}
cudaError_t cudaFree(void* memory) {
    return waitingCall("cudaFree", [&](Driver& d) {
        d.lock.assertHeld();
        if (memory == nullptr) return cudaSuccess;
        const auto it = d.blocks.find(static_cast<std::byte*>(memory));
        if (it == d.blocks.end() || !it->second.onDevice || it->second.imported)
            return cudaErrorInvalidValue;
        forget(it);
        return cudaSuccess;
    });
}
cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
    return waitingCall("cudaHostAlloc", [&](Driver& d) {
        d.lock.assertHeld();
        if (out == nullptr) return cudaErrorInvalidValue;
        Block block;
        block.bytes = bytes;
        block.whole = (bytes + kPage - 1) / kPage * kPage;
        void* base = std::aligned_alloc(kPage, block.whole);
        if (base == nullptr) return cudaErrorMemoryAllocation;
        std::memset(base, 0xa5, block.whole);  // nobody has promised zeros
        d.blocks[static_cast<std::byte*>(base)] = block;
        ++d.allocations;
        *out = base;
        return cudaSuccess;
    });
}
cudaError_t cudaFreeHost(void* memory) {
    return waitingCall("cudaFreeHost", [&](Driver& d) {
        d.lock.assertHeld();
        const auto it = d.blocks.find(static_cast<std::byte*>(memory));
        if (it == d.blocks.end() || it->second.onDevice) return cudaErrorInvalidValue;
        forget(it);
        return cudaSuccess;
    });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return put(
        "cudaMemsetAsync", stream, false,
        [&](Driver& d) {
            d.lock.assertHeld();
            return d.around(to) != d.blocks.end() && d.inside(to, bytes) ? cudaSuccess
                                                                         : cudaErrorInvalidValue;
        },
        [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
    bool pageable = false;
    {
        Driver& d = driver();
        const MutexLock lock(d.lock);
        pageable = d.around(to) == d.blocks.end() || d.around(from) == d.blocks.end();
    }
    return put(
        "cudaMemcpyAsync", stream, pageable,
        [&](Driver& d) {
            d.lock.assertHeld();
            if (bytes > 0 && (to == nullptr || from == nullptr)) return cudaErrorInvalidValue;
            if (!d.inside(to, bytes) || !d.inside(from, bytes)) return cudaErrorInvalidValue;
            const auto target = d.around(to), source = d.around(from);
            if (source != d.blocks.end() && source->second.onDevice &&
                (target == d.blocks.end() || !target->second.onDevice))
                d.bytesToHost += bytes;
            return cudaSuccess;
        },
        [=] {
            if (bytes > 0) std::memcpy(to, from, bytes);
        });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* at) {
    return call("cudaPointerGetAttributes", [&](Driver& d) {
        d.lock.assertHeld();
        *out = {};
        const auto it = d.around(at);
        out->device = it == d.blocks.end() ? -1 : it->second.gpu;
        out->type = it == d.blocks.end()   ? cudaMemoryTypeUnregistered
                    : !it->second.onDevice ? cudaMemoryTypeHost
                                           : cudaMemoryTypeDevice;
        return cudaSuccess;
    });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* out, void* memory) {
    return call("cudaIpcGetMemHandle", [&](Driver& d) {
        d.lock.assertHeld();
        const auto it = d.blocks.find(static_cast<std::byte*>(memory));
        if (it == d.blocks.end() || !it->second.onDevice || it->second.imported)
            return cudaErrorInvalidValue;
        struct stat about {};
        if (::fstat(it->second.fd, &about) != 0) return cudaErrorUnknown;
        const Handle handle{::getpid(), it->second.fd,
                            d.gpus[static_cast<size_t>(it->second.gpu)].number, about.st_ino};
        *out = {};
        std::memcpy(out->reserved, &handle, sizeof handle);
        return cudaSuccess;
    });
}
cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t from, unsigned flags) {
    return waitingCall("cudaIpcOpenMemHandle", [&](Driver& d) {
        d.lock.assertHeld();
        Handle handle{};
        std::memcpy(&handle, from.reserved, sizeof handle);
        if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
        if (handle.pid == ::getpid()) return cudaErrorInvalidResourceHandle;
        const std::string path =
            "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
        Block block;
        block.fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
        struct stat about {};
        struct flock lock {};
        lock.l_type = F_RDLCK;
        if (block.fd < 0 || ::fstat(block.fd, &about) != 0 || about.st_ino != handle.file ||
            ::fcntl(block.fd, F_OFD_SETLK, &lock) != 0)
            return ::close(block.fd), cudaErrorMapBufferObjectFailed;
        block.onDevice = block.imported = true;
        block.gpu = current;
        block.bytes = block.whole = static_cast<size_t>(about.st_size);
        std::byte* base = see(block.fd, block.whole);
        if (base == nullptr) return ::close(block.fd), cudaErrorMapBufferObjectFailed;
        d.blocks[base] = block;
        *out = base;
        return cudaSuccess;
    });
}
cudaError_t cudaIpcCloseMemHandle(void* memory) {
    return waitingCall("cudaIpcCloseMemHandle", [&](Driver& d) {
        d.lock.assertHeld();
        const auto it = d.blocks.find(static_cast<std::byte*>(memory));
        if (it == d.blocks.end() || !it->second.imported) return cudaErrorInvalidValue;
        forget(it);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
    return call("cudaStreamCreate", [&](Driver& d) {
        d.lock.assertHeld();
        // Others would wait for the default stream, and it for them; nobody here means that.
        if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
        auto* stream = new Stream(current);
        d.streams.insert(stream);
        *out = reinterpret_cast<cudaStream_t>(stream);
        return cudaSuccess;
    });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    auto* ours = reinterpret_cast<Stream*>(stream);
    const cudaError_t code = call("cudaStreamDestroy", [&](Driver& d) {
        d.lock.assertHeld();
        return d.streams.erase(ours) > 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
    });
    if (code == cudaSuccess) delete ours;
    return code;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return call("cudaStreamQuery", [&](Driver& d) {
        d.lock.assertHeld();
        if (!d.known(stream)) return cudaErrorInvalidResourceHandle;
        const Stream& on = d.streamOf(stream, current);
        return on.done(on.last()) ? cudaSuccess : cudaErrorNotReady;
    });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return put(
        "cudaStreamSynchronize", stream, true, [](Driver&) { return cudaSuccess; }, [] {});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
    return call("cudaEventCreate", [&](Driver&) {
        *out = reinterpret_cast<cudaEvent_t>(new Event);
        return cudaSuccess;
    });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete reinterpret_cast<Event*>(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return call("cudaEventRecord", [&](Driver& d) {
        d.lock.assertHeld();
        if (!d.known(stream)) return cudaErrorInvalidResourceHandle;
        Stream& on = d.streamOf(stream, current);
        *reinterpret_cast<Event*>(event) = {&on, on.last()};
        return cudaSuccess;
    });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call("cudaEventQuery", [&](Driver&) {
        const Event& ours = *reinterpret_cast<Event*>(event);
        const bool done = ours.stream == nullptr || ours.stream->done(ours.number);
        return done ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* kernel) {
    return waitingCall("cudaFuncGetAttributes", [&](Driver& d) {
        d.lock.assertHeld();
        if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
        *out = {};
        d.gpus[static_cast<size_t>(current)].loaded.insert(kernel);
        return cudaSuccess;
    });
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    return call("cudaFuncSetAttribute", [&](Driver& d) {
        d.lock.assertHeld();
        if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
        if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
            static_cast<size_t>(value) > kSharedBytes)
            return cudaErrorInvalidValue;
        d.gpus[static_cast<size_t>(current)].shared[kernel] = static_cast<size_t>(value);
        return cudaSuccess;
    });
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                             size_t shared, cudaStream_t stream) {
    if (kernel == nullptr) return keep(cudaErrorInvalidDeviceFunction);
    const auto body = static_cast<const Kernel*>(kernel)->prepare(blocks.x, arguments);
    bool blocking = false;
    {
        const MutexLock lock(driver().lock);
        blocking = driver().blocking;
    }
    return put(
        "cudaLaunchKernel", stream, blocking,
        [&](Driver& d) {
            d.lock.assertHeld();
            Gpu& gpu = d.gpus[static_cast<size_t>(current)];
            const auto allowed = gpu.shared.find(kernel);
            if (blocks.x == 0 || threads.x == 0 || threads.x > 1024 ||
                shared > (allowed == gpu.shared.end() ? kUsualSharedBytes : allowed->second))
                return cudaErrorInvalidValue;
            // Its module is loaded at the first launch.
            if (gpu.loaded.insert(kernel).second) d.waitForIdle(current);
            ++d.launches;
            return cudaSuccess;
        },
        body);
}

// ---- the driver -------------------------------------------------------------------------------

int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);
int cuMemGetAddressRange_v2(unsigned long long* base, size_t* bytes, unsigned long long at);

int cuInit(unsigned) {
    return 0;
}
int cuDeviceGetCount(int* count) {
    *count = driver().count();
    return 0;
}
int cuMemGetAddressRange_v2(unsigned long long* base, size_t* bytes, unsigned long long at) {
    return call("cuMemGetAddressRange", [&](Driver& d) {
        d.lock.assertHeld();
        const auto it = d.around(reinterpret_cast<const void*>(at));
        if (it == d.blocks.end()) return cudaErrorInvalidValue;
        *base = reinterpret_cast<unsigned long long>(it->first);
        *bytes = it->second.whole;
        return cudaSuccess;
    });
}

}  // extern "C"
