// SPDX-License-Identifier: Apache-2.0
// State as bytes, and experts that move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/plugins/model.h"

namespace bulkhead::test {
namespace {

void train(Model& model, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i) model.step(someText(8, 16, i), 3e-3f);
}

std::vector<int32_t> reversed(std::vector<int32_t> placement, size_t shards) {
    for (int32_t& shard : placement) shard = static_cast<int32_t>(shards) - 1 - shard;
    return placement;
}

TEST(State, ARoundTripKeepsTheHashAndTrainsOnToEqualBits) {
    Model source({.shards = 2});
    source.initialise(1);
    train(source, 0, 4);
    Model target({.shards = 2});
    target.initialise(99);
    target.step(someText(8, 16));  // whole units are gathered and moments are not zero
    EXPECT_NE(target.hashes(), source.hashes());
    target.importAll(source.exportAll());
    EXPECT_EQ(target.hashes(), source.hashes());
    // The update number is the host's to know: both models have to be told the same.
    target.initialise(0);
    for (int i = 0; i < 4; ++i) target.apply(0.0f, 1);
    target.importAll(source.exportAll(), 4096);
    train(source, 4, 7);
    train(target, 4, 7);
    EXPECT_EQ(target.hashes(), source.hashes());
}

TEST(State, EveryByteCountsInTheHash) {
    Model model({});
    model.initialise(1);
    train(model, 0, 2);
    const auto hash = model.hashes();
    const uint64_t bytes = model.info().state_bytes;
    for (const uint64_t at : {uint64_t{0}, bytes / 3, bytes / 2, bytes - 1}) {
        char byte = 0;
        ASSERT_EQ(model.api().export_state(model.shard(0), at, 1, &byte), BULKHEAD_OK);
        char flipped = static_cast<char>(byte ^ 1);
        ASSERT_EQ(model.api().import_state(model.shard(0), at, 1, &flipped), BULKHEAD_OK);
        EXPECT_NE(model.hashes(), hash) << "byte " << at;
        ASSERT_EQ(model.api().import_state(model.shard(0), at, 1, &byte), BULKHEAD_OK);
        EXPECT_EQ(model.hashes(), hash);
    }
}

TEST(State, ABitFlippedInOneShardDuringAStepHangsNobody) {
    Model model({.shards = 2});
    model.initialise(1);
    train(model, 0, 2);
    model.forwardBackward(someText(8, 16));  // both shards hold whole units now
    char byte = 0;
    ASSERT_EQ(model.api().export_state(model.shard(1), 40, 1, &byte), BULKHEAD_OK);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(model.api().import_state(model.shard(1), 40, 1, &byte), BULKHEAD_OK);
    model.forwardBackward(someText(8, 16));
    train(model, 3, 5);
}

TEST(State, BytesOutsideTheStateAreRefused) {
    Model model({});
    char byte = 0;
    const uint64_t bytes = model.info().state_bytes;
    EXPECT_EQ(model.api().export_state(model.shard(0), bytes, 1, &byte), BULKHEAD_INVALID);
    EXPECT_EQ(model.api().import_state(model.shard(0), bytes - 1, UINT64_MAX, &byte),
              BULKHEAD_INVALID);
    EXPECT_THAT(model.error(), testing::HasSubstr("are not within the state of"));
}

TEST(State, InitialValuesDependOnTheSeedOnly) {
    const auto text = someText(8, 16);
    std::vector<double> losses;
    for (const size_t shards : {1, 2, 4}) {
        Model model({.shards = shards});
        model.initialise(6);
        losses.push_back(model.evaluate(text));
        if (shards == 1) continue;
        model.adoptLayout(reversed(model.layout(), shards));
        model.initialise(6);
        losses.push_back(model.evaluate(text));
    }
    for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-5);
}

/// Every value of the state by its tensor's name and moment, put together from all shards.
std::map<std::string, std::vector<float>> tensorsOf(Model& model, size_t shards) {
    std::map<std::string, std::vector<float>> tensors;
    for (size_t s = 0; s < shards; ++s) {
        uint32_t count = 0;
        EXPECT_EQ(model.api().state_tensors(model.shard(s), nullptr, 0, &count), BULKHEAD_OK);
        std::vector<bulkhead_state_tensor> told(count);
        EXPECT_EQ(model.api().state_tensors(model.shard(s), told.data(), count, &count),
                  BULKHEAD_OK);
        for (const bulkhead_state_tensor& t : told) {
            uint64_t size = 1;
            for (uint32_t d = 0; d < t.dimensions; ++d) size *= t.shape[d];
            std::vector<float>& whole = tensors[std::string(t.name) + " " + t.moment];
            whole.resize(size, std::nanf(""));
            EXPECT_EQ(model.api().export_state(model.shard(s), t.offset, t.count * sizeof(float),
                                               whole.data() + t.first),
                      BULKHEAD_OK);
        }
    }
    return tensors;
}

TEST(State, TensorsByNameAreTheSameOnAnyShardsAndLayout) {
    Model alone({});
    alone.initialise(6);
    const auto expected = tensorsOf(alone, 1);
    uint64_t parameters = 0;
    for (const auto& [name, values] : expected)
        if (name.back() == ' ') parameters += values.size();
    EXPECT_EQ(parameters, alone.info().parameters);
    EXPECT_EQ(expected.count("layers.1.moe.experts.5.w13 exp_avg_sq"), 1u);
    for (const size_t shards : {2, 4}) {
        Model model({.shards = shards});
        model.initialise(6);
        EXPECT_EQ(tensorsOf(model, shards), expected) << shards << " shards";
        model.changeLayout(reversed(model.layout(), shards));
        EXPECT_EQ(model.settle(1), BULKHEAD_OK);
        EXPECT_EQ(tensorsOf(model, shards), expected) << shards << " shards, experts moved";
    }
}

TEST(Layout, MovingExpertsKeepsTheFunction) {
    Model model({.shards = 4});
    model.initialise(3);
    train(model, 0, 3);
    const auto text = someText(8, 16, 50);
    const double before = model.evaluate(text);
    const uint64_t moved = model.changeLayout(reversed(model.layout(), 4));
    EXPECT_EQ(moved, model.info().expert_bytes * 16);  // all 8 experts of 2 layers
    EXPECT_EQ(model.settle(1), BULKHEAD_OK);
    EXPECT_NEAR(model.evaluate(text), before, 1e-6);
}

TEST(Layout, TrainingGoesOnAsIfNothingHadMoved) {
    Model still({.shards = 2});
    Model moving({.shards = 2});
    for (Model* model : {&still, &moving}) {
        model->initialise(3);
        train(*model, 0, 3);
    }
    // Uneven: shard 0 keeps one expert of the first mixture layer and gets all of the second.
    std::vector<int32_t> placement(16, 1);
    placement[3] = 0;
    std::fill(placement.begin() + 8, placement.end(), 0);
    moving.changeLayout(placement);
    EXPECT_EQ(moving.settle(1), BULKHEAD_OK);
    EXPECT_EQ(moving.layout(), placement);
    for (uint64_t i = 3; i < 9; ++i)
        EXPECT_NEAR(moving.step(someText(8, 16, i)), still.step(someText(8, 16, i)), 2e-4);
}

TEST(Layout, GoingBackRestoresEveryBit) {
    Model model({.shards = 2});
    model.initialise(3);
    train(model, 0, 3);
    const auto hashes = model.hashes();
    const auto placement = model.layout();
    model.changeLayout(reversed(placement, 2));
    EXPECT_NE(model.hashes(), hashes);
    EXPECT_EQ(model.settle(0), BULKHEAD_OK);
    EXPECT_EQ(model.hashes(), hashes);
    EXPECT_EQ(model.layout(), placement);
    train(model, 3, 4);
}

TEST(Layout, ThereIsNoWayBackAfterAnUpdate) {
    Model model({.shards = 2});
    model.initialise(3);
    model.changeLayout(reversed(model.layout(), 2));
    train(model, 0, 1);
    EXPECT_EQ(model.settle(0), BULKHEAD_INVALID);
    EXPECT_EQ(model.settle(1), BULKHEAD_OK);
}

TEST(Layout, AMovedModelSurvivesExportAndImport) {
    Model model({.shards = 2});
    model.initialise(3);
    train(model, 0, 3);
    model.changeLayout(reversed(model.layout(), 2));
    EXPECT_EQ(model.settle(1), BULKHEAD_OK);
    Model other({.shards = 2});
    other.initialise(77);
    other.adoptLayout(model.layout());
    other.importAll(model.exportAll());
    EXPECT_EQ(other.hashes(), model.hashes());
    EXPECT_EQ(other.evaluate(someText(8, 16, 9)), model.evaluate(someText(8, 16, 9)));
}

TEST(Layout, TablesThatDoNotFitAreRefused) {
    Model model({.shards = 2});
    std::vector<int32_t> placement = model.layout();
    placement[9] = 2;
    uint64_t moved = 0;
    EXPECT_EQ(model.api().change_layout(model.shard(0), placement.data(), 16, &moved),
              BULKHEAD_INVALID);
    EXPECT_EQ(model.error(), "expert 1 of mixture layer 1 must be on a shard from 0 to 1, not 2");
    EXPECT_EQ(model.api().change_layout(model.shard(0), placement.data(), 15, &moved),
              BULKHEAD_INVALID);
    EXPECT_THAT(model.error(), testing::HasSubstr("needs 16 entries"));
}

TEST(State, DestroyingGivesAllMemoryBack) {
    Shards ranks(1);
    bulkhead_workload_config config{};
    bulkhead_host host{nullptr, [](void*, int32_t, const char*) {}, [](void*, const char*) {}};
    config.struct_size = sizeof(config);
    config.host = &host;
    config.device_api = ranks.device(0).api;
    config.device = ranks.device(0).device;
    config.shards = 1;
    config.model_toml = kSmallModel;
    config.sequence_length = 16;
    config.micro_batch = 1;
    config.domains = 1;
    Model table({});
    bulkhead_workload* workload = nullptr;
    ASSERT_EQ(table.api().create(&config, &workload), BULKHEAD_OK);
    bulkhead_device_info info{};
    ASSERT_EQ(config.device_api->describe(config.device, &info), BULKHEAD_OK);
    EXPECT_GT(info.memory_used, 0u);
    table.api().destroy(workload);
    ASSERT_EQ(config.device_api->describe(config.device, &info), BULKHEAD_OK);
    EXPECT_EQ(info.memory_used, 0u);
}

}  // namespace
}  // namespace bulkhead::test
