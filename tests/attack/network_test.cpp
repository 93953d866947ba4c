// SPDX-License-Identifier: Apache-2.0
// Attacks from the network of a running job: eavesdropping, replay and disruption; README.md has
// the table of all attacks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "backend/model/run_state.h"
#include "tests/attack/victim.h"

namespace bulkhead::attack {
namespace {

using ::testing::IsEmpty;

class NetworkAttack : public ::testing::Test {
  protected:
    NetworkAttack() : dir_(::testing::TempDir() + "bulkhead-attack-XXXXXX") {
        ::mkdtemp(dir_.data());
        victim_ = std::make_unique<Victim>(BULKHEAD_BIN, dir_);
    }
    ~NetworkAttack() override {
        victim_.reset();
        if (HasFailure()) return;  // its logs say more
        std::filesystem::remove_all(dir_);
    }
    void SetUp() override {
        static const absl::Status alone = ownLoopback();
        ASSERT_TRUE(alone.ok()) << alone;
        tap_ = *Tap::begin();
        const absl::Status started = victim_->start();
        ASSERT_TRUE(started.ok()) << started;
    }
    void train(uint32_t replicas) {
        const absl::Status trains = victim_->train(replicas);
        ASSERT_TRUE(trains.ok()) << trains;
    }
    void returns(int32_t replica) {
        const absl::Status back = victim_->killAndAwait(replica);
        ASSERT_TRUE(back.ok()) << back;
    }
    size_t incidents() {
        const auto state = victim_->state();
        EXPECT_TRUE(state.ok());
        return state.ok() ? state.value()->incidents.size() : 0;
    }
    static std::map<std::string, size_t> found(const Pieces& pieces,
                                               const std::vector<Stream>& streams) {
        std::map<std::string, size_t> all;
        for (const Stream& stream : streams)
            for (const auto& [name, times] : pieces.in(stream.bytes)) all[name] += times;
        return all;
    }

    std::string dir_;
    std::unique_ptr<Victim> victim_;
    std::unique_ptr<Tap> tap_;
};

TEST_F(NetworkAttack, WhatIsHeardTellsNoSecretNoTextNoParameterAndIsOfNoUseAgain) {
    train(3);
    returns(2);  // its state goes over the network
    const std::vector<Stream> heard = tap_->streams();
    EXPECT_EQ(tap_->missed(), 0u);
    const Pieces pieces = victim_->pieces();
    EXPECT_THAT(found(pieces, heard), IsEmpty());

    // Every session again, to whoever listens there still.
    const std::set<uint16_t> ports = listeningPorts();
    ASSERT_GE(ports.size(), 2u + 3 * 2) << "console, agents; gradients and state of each rank";
    Callers replay;
    std::set<uint16_t> called;
    for (const Stream& stream : heard)
        if (stream.called && ports.contains(stream.to)) {
            called.insert(stream.to);
            replay.call(stream.to, stream.bytes);
        }
    EXPECT_TRUE(called.contains(Victim::kConsolePort));
    EXPECT_TRUE(called.contains(Victim::kControlPort));
    EXPECT_GE(called.size(), 2u + 2) << "of the ranks that live, one called two for gradients";
    // Gradients' connections are looked at when a membership begins: the next loss.
    ASSERT_EQ(incidents(), 1u);
    returns(2);
    while (replay.open() > 0) replay.pump(100);  // ctest ends what never ends
    EXPECT_EQ(incidents(), 2u);
    const auto state = victim_->state();
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(state.value()->faults.size(), 2u) << "an order that was repeated was carried out";
    const absl::Status stopped = victim_->stopAndCheck();
    EXPECT_TRUE(stopped.ok()) << stopped;

    // The tap hears what is not protected.
    const std::map<std::string, size_t> before = found(pieces, tap_->streams());
    EXPECT_THAT(before, IsEmpty());
    std::string parameters;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/checkpoints"))
        if (entry.path().extension() == ".state") {
            std::ifstream in(entry.path(), std::ios::binary);
            parameters.assign(std::istreambuf_iterator<char>(in), {});
            break;
        }
    std::map<std::string, size_t> after;
    // The listener may hang up before all is through.
    for (int i = 0; i < 20 && !(after.contains("text") && after.contains("parameters")); ++i) {
        Callers plain;
        plain.call(Victim::kControlPort, parameters);
        plain.call(Victim::kConsolePort, victim_->text());
        while (plain.open() > 0) plain.pump(100);
        after = found(pieces, tap_->streams());
    }
    EXPECT_TRUE(after.contains("text"));
    EXPECT_TRUE(after.contains("parameters"));
}

TEST_F(NetworkAttack, GarbageOnEveryPortCostsNoStep) {
    train(2);
    std::mt19937_64 random(5);
    const auto garbage = [&](size_t bytes) {
        std::string all(bytes, '\0');
        for (char& c : all) c = static_cast<char>(random());
        return all;
    };
    // Nothing, noise, the beginning of a TLS session, of HTTP/2, of a frame of gradients.
    const std::vector<std::string> beginnings = {"",
                                                 garbage(1),
                                                 garbage(70'000),
                                                 std::string("\x16\x03\x01\x02\x00\x01", 6),
                                                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                                 std::string("BKDA\x02\0\0\0", 8)};
    Callers callers;
    for (int round = 0; round < 5; ++round)
        for (const uint16_t port : listeningPorts())
            for (const std::string& beginning : beginnings)
                callers.call(port, beginning + (beginning.empty() ? "" : garbage(400)));
    const absl::Status goesOn = victim_->awaitSteps(5);
    EXPECT_TRUE(goesOn.ok()) << goesOn;
    EXPECT_EQ(incidents(), 0u);
    // Strangers that wait at the door while a replica comes back.
    returns(1);
    EXPECT_EQ(incidents(), 1u);
    const absl::Status stopped = victim_->stopAndCheck();
    EXPECT_TRUE(stopped.ok()) << stopped;
}

}  // namespace
}  // namespace bulkhead::attack
