// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/group.h"

#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/cuda/card_group.h"
#include "plugins/cuda/communicator.h"
#include "plugins/cuda/kernels.h"
#include "plugins/cuda/rendezvous.h"

/// With neither a communicator nor a card: a group of one rank, for which no NCCL is needed.
struct bulkhead_group {
    bulkhead_device* device = nullptr;
    int32_t rank = 0;
    int32_t size = 1;
    std::atomic<bool> aborted{false};
    std::unique_ptr<bulkhead::cuda::Communicator> communicator;  ///< a GPU for each rank
    std::unique_ptr<bulkhead::cuda::CardGroup> card;             ///< one for all of them
    void* scratch = nullptr;  ///< device memory of reduceScatter, grows
    size_t scratchBytes = 0;
};

namespace bulkhead::cuda {
namespace {

size_t widthOf(bulkhead_dtype type) {
    switch (type) {
        case BULKHEAD_F32:
        case BULKHEAD_I32:
            return 4;
        case BULKHEAD_BF16:
            return 2;
        case BULKHEAD_F64:
            return 8;
        case BULKHEAD_U8:
            return 1;
    }
    return 0;
}

/// Random where it was made, so equal only for the same GPU, or the same slice of one.
absl::StatusOr<uint64_t> placeOf(const bulkhead_device* device) {
    cudaDeviceProp properties{};
    if (absl::Status s = fromCuda(cudaGetDeviceProperties(&properties, device->index), "GPU");
        !s.ok())
        return s;
    uint64_t halves[2];
    static_assert(sizeof properties.uuid == sizeof halves);
    std::memcpy(halves, &properties.uuid, sizeof halves);
    return halves[0] ^ halves[1];
}

/// Rank 0 tells the others this: where they meet, by NCCL or on one GPU.
struct Invitation {
    ncclUniqueId id{};
    char page[CardGroup::kNameLength]{};
};

Rendezvous rendezvousOf(const bulkhead_group_desc* desc, uint64_t place) {
    Rendezvous with;
    with.group = desc->name;
    with.token = desc->secret[0];
    with.rank = desc->rank;
    for (int32_t r = 0; r < desc->size; ++r)
        with.data.push_back(desc->peers[r].data == nullptr ? "" : desc->peers[r].data);
    with.listenFd = desc->listen_fd;
    with.timeoutMs = desc->timeout_ms;
    with.place = place;
    with.mayShare = true;
    if (desc->progress != nullptr)
        with.progress = [call = desc->progress, context = desc->progress_context] {
            call(context);
        };
    return with;
}

/// Where NCCL is missing, ranks that share a GPU do without.
absl::Status idOf(ncclUniqueId* id) {
    const absl::StatusOr<const NcclLibrary*> nccl = ncclLibrary();
    if (!nccl.ok()) return nccl.status();
    const ncclResult_t code = (*nccl)->getUniqueId(id);
    if (code == ncclSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("NCCL: ", (*nccl)->getErrorString(code)));
}

template <class Options>
Options optionsOf(const bulkhead_group_desc* desc, const Rendezvous& with) {
    Options options;
    options.name = desc->name;
    options.rank = desc->rank;
    options.size = desc->size;
    options.timeout = std::chrono::milliseconds(desc->timeout_ms);
    options.progress = with.progress;
    return options;
}

absl::Status connect(bulkhead_group* group, const bulkhead_group_desc* desc) {
    const absl::StatusOr<uint64_t> place = placeOf(group->device);
    if (!place.ok()) return place.status();
    const Rendezvous with = rendezvousOf(desc, *place);
    Invitation invitation;
    std::unique_ptr<CardGroup::Page> page;
    absl::Status noNccl;
    if (desc->rank == 0) {
        noNccl = idOf(&invitation.id);
        absl::StatusOr<std::unique_ptr<CardGroup::Page>> made = CardGroup::makePage();
        if (!made.ok()) return made.status();
        page = std::move(*made);
        CardGroup::nameOf(*page).copy(invitation.page, sizeof invitation.page - 1);
    }
    std::string message(reinterpret_cast<const char*>(&invitation), sizeof invitation);
    const absl::StatusOr<Seating> seating = shareFromRankZero(with, message);
    if (!seating.ok()) return seating.status();
    std::memcpy(&invitation, message.data(), sizeof invitation);
    if (*seating == Seating::kApart) {
        if (!noNccl.ok()) return noNccl;
        absl::StatusOr<std::unique_ptr<Communicator>> made =
            Communicator::create(optionsOf<Communicator::Options>(desc, with), invitation.id);
        if (!made.ok()) return made.status();
        group->communicator = std::move(*made);
        return absl::OkStatus();
    }
    if (page == nullptr) {
        invitation.page[sizeof invitation.page - 1] = 0;
        absl::StatusOr<std::unique_ptr<CardGroup::Page>> found =
            CardGroup::findPage(invitation.page);
        if (!found.ok()) return found.status();
        page = std::move(*found);
    }
    absl::StatusOr<std::unique_ptr<CardGroup>> made =
        CardGroup::create(optionsOf<CardGroup::Options>(desc, with), std::move(page));
    if (!made.ok()) return made.status();
    group->card = std::move(*made);
    return absl::OkStatus();
}

/// A non-blocking communicator may still be at work on what it has accepted.
bool accepted(ncclResult_t code) {
    return code == ncclSuccess || code == ncclInProgress;
}

/// Sends parts of `from` and receives parts of `to`, packed by rank in both.
absl::Status swap(bulkhead_group* group, const char* what, const void* from,
                  const std::vector<size_t>& send, void* to, const std::vector<size_t>& receive,
                  cudaStream_t stream) {
    if (group->card != nullptr) {
        std::vector<size_t> at(send.size());
        std::exclusive_scan(send.begin(), send.end(), at.begin(), size_t{0});
        return group->card->swap(what, from, at.back() + send.back(), at, to, receive, stream);
    }
    return group->communicator->run(what, stream, [&](const NcclLibrary& nccl, ncclComm_t comm) {
        const auto* out = static_cast<const std::byte*>(from);
        auto* in = static_cast<std::byte*>(to);
        ncclResult_t code = nccl.groupStart();
        for (int32_t r = 0; r < group->size && accepted(code); ++r) {
            const auto at = static_cast<size_t>(r);
            // Also to ourselves: NCCL makes that a copy.
            if (send[at] > 0) code = nccl.send(out, send[at], ncclUint8, r, comm, stream);
            if (receive[at] > 0 && accepted(code))
                code = nccl.recv(in, receive[at], ncclUint8, r, comm, stream);
            out += send[at];
            in += receive[at];
        }
        const ncclResult_t ended = nccl.groupEnd();
        return accepted(code) ? ended : code;
    });
}

/// A group of one: what it gives is what it gets.
absl::Status keep(const bulkhead_group* group, const void* from, void* to, size_t bytes,
                  bulkhead_stream* stream) {
    if (group->aborted.load(std::memory_order_acquire))
        return absl::AbortedError("the group was aborted");
    if (from == to || bytes == 0) return absl::OkStatus();
    return fromCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, streamOf(stream)), "copy");
}

absl::Status needScratch(bulkhead_group* group, size_t bytes) {
    if (bytes <= group->scratchBytes) return absl::OkStatus();
    if (group->scratch != nullptr) ignore(cudaFree(group->scratch));
    group->scratch = nullptr;
    group->scratchBytes = 0;
    if (absl::Status s = fromCuda(cudaMalloc(&group->scratch, bytes), "reduce_scatter"); !s.ok())
        return s;
    group->scratchBytes = bytes;
    return absl::OkStatus();
}

bool isAlone(const bulkhead_group* group) {
    return group->communicator == nullptr && group->card == nullptr;
}

/// NCCL's first use of a peer waits for all that runs on the GPU, as does taking memory:
/// every rank is reached now, in both ways in which it will be.
absl::Status reachAll(bulkhead_group* group) {
    const auto ranks = static_cast<size_t>(group->size);
    if (absl::Status s = needScratch(group, 2 * ranks); !s.ok()) return s;
    auto* bytes = static_cast<std::byte*>(group->scratch);
    const std::vector<size_t> one(ranks, 1);
    if (absl::Status s = swap(group, "connecting", bytes, one, bytes + ranks, one, nullptr);
        !s.ok() || group->card != nullptr)
        return s;
    return group->communicator->run(
        "connecting", nullptr, [&](const NcclLibrary& nccl, ncclComm_t comm) {
            return nccl.allGather(bytes, bytes + ranks, 1, ncclUint8, comm, nullptr);
        });
}

absl::Status addParts(bulkhead_group* group, void* to, size_t count, bulkhead_dtype type,
                      cudaStream_t stream) {
    const size_t part = count * widthOf(type);
    std::vector<const void*> parts;
    for (int32_t r = 0; r < group->size; ++r)
        parts.push_back(static_cast<std::byte*>(group->scratch) + static_cast<size_t>(r) * part);
    const auto many = static_cast<uint32_t>(group->size);
    if (type != BULKHEAD_F32 && type != BULKHEAD_BF16)
        return fromCuda(launchPlainSum(to, parts.data(), many, count, type, stream),
                        "reduce_scatter");
    Sum sum{};
    sum.to = reinterpret_cast<uint64_t>(to);
    sum.count = count;
    sum.narrow = type == BULKHEAD_BF16 ? ~uint64_t{0} : 0;
    sum.narrowTo = type == BULKHEAD_BF16;
    sum.sources = many;
    for (uint32_t r = 0; r < many; ++r) sum.from[r] = reinterpret_cast<uint64_t>(parts[r]);
    return fromCuda(launchSum(sum, stream), "reduce_scatter");
}

}  // namespace

bulkhead_status createGroup(bulkhead_device* device, const bulkhead_group_desc* desc,
                            bulkhead_group** out) {
    *out = nullptr;
    return guarded(device, [&]() -> absl::Status {
        if (desc->struct_size < sizeof(bulkhead_group_desc) || desc->size < 1 || desc->rank < 0 ||
            desc->rank >= desc->size || desc->size > static_cast<int32_t>(kMaxSources) ||
            desc->name == nullptr || desc->peers == nullptr)
            return absl::InvalidArgumentError(absl::StrCat(
                "group_create: expected a whole description of this ABI version, 1 to ",
                kMaxSources, " ranks, and a rank among them"));
        auto group = std::make_unique<bulkhead_group>();
        group->device = device;
        group->rank = desc->rank;
        group->size = desc->size;
        absl::Status s;
        if (desc->size > 1) s = connect(group.get(), desc);
        if (s.ok() && desc->size > 1) s = reachAll(group.get());
        if (s.ok())
            *out = group.release();
        else if (group->scratch != nullptr)
            ignore(cudaFree(group->scratch));
        return s;
    });
}

void destroyGroup(bulkhead_group* group) {
    if (group == nullptr) return;
    (void)guarded(group->device, [&] {
        group->communicator.reset();
        group->card.reset();
        return group->scratch == nullptr ? absl::OkStatus()
                                         : fromCuda(cudaFree(group->scratch), "group_destroy");
    });
    delete group;
}

void abortGroup(bulkhead_group* group) {
    group->aborted.store(true, std::memory_order_release);
    if (group->communicator != nullptr) group->communicator->abort();
    if (group->card != nullptr) group->card->abort();
}

bulkhead_status allGather(bulkhead_group* group, const void* from, void* to, size_t count,
                          bulkhead_dtype type, bulkhead_stream* stream) {
    return guarded(group->device, [&] {
        const size_t bytes = count * widthOf(type);
        if (isAlone(group)) return keep(group, from, to, bytes, stream);
        const auto ranks = static_cast<size_t>(group->size);
        if (group->card != nullptr)
            return group->card->swap("all_gather", from, bytes, std::vector<size_t>(ranks), to,
                                     std::vector<size_t>(ranks, bytes), streamOf(stream));
        return group->communicator->run(
            "all_gather", streamOf(stream), [&](const NcclLibrary& nccl, ncclComm_t comm) {
                return nccl.allGather(from, to, bytes, ncclUint8, comm, streamOf(stream));
            });
    });
}

/// The parts go to their owner, who adds them in rank order: NCCL's own sum has an order that the
/// topology chooses, and adds bfloat16 in bfloat16. As many bytes travel.
bulkhead_status reduceScatter(bulkhead_group* group, const void* from, void* to, size_t count,
                              bulkhead_dtype type, bulkhead_stream* stream) {
    return guarded(group->device, [&]() -> absl::Status {
        const size_t bytes = count * widthOf(type);
        if (isAlone(group)) return keep(group, from, to, bytes, stream);
        const auto ranks = static_cast<size_t>(group->size);
        if (absl::Status s = needScratch(group, ranks * bytes); !s.ok()) return s;
        const std::vector<size_t> even(ranks, bytes);
        absl::Status s =
            swap(group, "reduce_scatter", from, even, group->scratch, even, streamOf(stream));
        if (!s.ok() || count == 0) return s;
        return addParts(group, to, count, type, streamOf(stream));
    });
}

bulkhead_status allToAll(bulkhead_group* group, const void* from, const size_t* sendBytes, void* to,
                         const size_t* recvBytes, bulkhead_stream* stream) {
    return guarded(group->device, [&]() -> absl::Status {
        const auto ranks = static_cast<size_t>(group->size);
        const auto self = static_cast<size_t>(group->rank);
        if (sendBytes[self] != recvBytes[self])
            return absl::InvalidArgumentError(
                "all_to_all: as many bytes from us as to us, on every rank");
        if (isAlone(group)) return keep(group, from, to, sendBytes[0], stream);
        return swap(group, "all_to_all", from, {sendBytes, sendBytes + ranks}, to,
                    {recvBytes, recvBytes + ranks}, streamOf(stream));
    });
}

bulkhead_status barrier(bulkhead_group* group) {
    return guarded(group->device, [&]() -> absl::Status {
        if (isAlone(group)) return keep(group, nullptr, nullptr, 0, nullptr);
        if (group->card != nullptr) return group->card->meet("barrier");
        if (absl::Status s = needScratch(group, static_cast<size_t>(group->size)); !s.ok())
            return s;
        auto* bytes = static_cast<std::byte*>(group->scratch);
        return group->communicator->run(
            "barrier", nullptr, [&](const NcclLibrary& nccl, ncclComm_t comm) {
                return nccl.allGather(bytes + group->rank, bytes, 1, ncclUint8, comm, nullptr);
            });
    });
}

}  // namespace bulkhead::cuda
