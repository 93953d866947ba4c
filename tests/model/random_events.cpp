// SPDX-License-Identifier: Apache-2.0
#include "tests/model/random_events.h"

#include <limits>
#include <string>
#include <string_view>

namespace bulkhead::model {

/// Fills any described value by walking its fields.
struct RandomEvents::Values {
    RandomEvents& random;

    template <class T>
    void operator()(std::string_view, T& value) {
        fill(value);
    }

    template <class T>
    void fill(T& value) {
        if constexpr (std::same_as<T, bool>) {
            value = random.below(2) == 1;
        } else if constexpr (std::same_as<T, double>) {
            value = real();
        } else if constexpr (FieldScalar<T>) {
            value = integer<T>();
        } else if constexpr (std::is_enum_v<T>) {
            value = static_cast<T>(random.below(EnumNames<T>::kNames.size()));
        } else if constexpr (std::same_as<T, std::string>) {
            value.clear();
            for (uint64_t n = random.below(random.hostile_ ? 1500 : 12); n > 0; --n)
                value.push_back(static_cast<char>(random.hostile_ ? random.below(256)
                                                                  : 'a' + random.below(26)));
        } else if constexpr (IsVector<T>::value) {
            value.clear();
            for (uint64_t n = random.below(6); n > 0; --n) fill(value.emplace_back());
        } else if constexpr (IsOptional<T>::value) {
            value.reset();
            if (random.below(2) == 1) fill(value.emplace());
        } else if constexpr (IsVariant<T>::value) {
            withAlternative<T>(random.below(std::variant_size_v<T>),
                               [&]<size_t I>() { fill(value.template emplace<I>()); });
        } else {
            T::fields(value, *this);
        }
    }

    template <class T>
    T integer() {
        if (!random.hostile_) return static_cast<T>(random.below(9));
        switch (random.below(5)) {
            case 0:
                return std::numeric_limits<T>::max();
            case 1:
                return std::numeric_limits<T>::min();
            case 2:
                return static_cast<T>(-1);
            case 3:
                return static_cast<T>(random.below(5));
            default:
                return static_cast<T>(random.random_());
        }
    }
    double real() {
        constexpr double kOdd[] = {0.0, -1.0, 1e308, -1e308, 5e-324};
        if (!random.hostile_) return static_cast<double>(random.below(1000)) / 8.0;
        switch (random.below(4)) {
            case 0:
                return std::numeric_limits<double>::quiet_NaN();
            case 1:
                return std::numeric_limits<double>::infinity();
            default:
                return kOdd[random.below(5)];
        }
    }
};

Event RandomEvents::event(uint64_t seq) {
    Event e;
    Values{*this}.fill(e);
    if (hostile_) return e;
    e.seq = seq;
    e.timeNs = 1'700'000'000'000'000'000 + static_cast<int64_t>(seq * 10'000'000);
    if (auto* loads = std::get_if<ExpertLoads>(&e.body)) {
        loads->moeLayers = 2;
        loads->domains = 1 + static_cast<uint32_t>(below(2));
        loads->experts = 3;
        loads->counts.assign(size_t{6} * loads->domains, below(50));
    }
    if (auto* phase = std::get_if<IncidentPhase>(&e.body)) {
        phase->beginNs = e.timeNs - 3'000'000;
        phase->endNs = e.timeNs - static_cast<int64_t>(below(60)) * 1'000'000;
    }
    return e;
}

}  // namespace bulkhead::model
