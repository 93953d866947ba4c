// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

/// Memory for states and gradients, whose contents are anything at first. Where it is large it asks
/// the kernel for large pages: 8 GiB would be two million page faults.
namespace bulkhead {

constexpr size_t kLargePage = 2 << 20;
constexpr size_t kSmallAlignment = 64;

/// To be given to std::free().
inline void* takeMemory(size_t bytes) {
    const size_t alignment = bytes < 2 * kLargePage ? kSmallAlignment : kLargePage;
    const size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, whole);
    if (memory == nullptr) throw std::bad_alloc();
    if (alignment == kLargePage) (void)::madvise(memory, whole, MADV_HUGEPAGE);  // where it can
    return memory;
}

/// For vectors that are written whole: resize() does not fill them.
template <class T>
struct Unfilled {
    using value_type = T;
    Unfilled() = default;
    template <class U>
    explicit Unfilled(const Unfilled<U>&) {}
    T* allocate(size_t count) { return static_cast<T*>(takeMemory(count * sizeof(T))); }
    void deallocate(T* memory, size_t) { std::free(memory); }
    template <class U>
    void construct(U* at) {
        ::new (static_cast<void*>(at)) U;
    }
    template <class U, class... Arguments>
    void construct(U* at, Arguments&&... arguments) {
        ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
    }
    bool operator==(const Unfilled&) const { return true; }
};

using Floats = std::vector<float, Unfilled<float>>;

}  // namespace bulkhead
