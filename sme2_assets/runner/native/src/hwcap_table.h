// The AArch64 Linux hwcap bits with their names in /proc/cpuinfo.
// Written out here because a distribution's <asm/hwcap.h> is often older than the CPU it runs on.
#pragma once

#include <cstdint>

namespace sme2 {

constexpr unsigned long kAtHwcap = 16;
constexpr unsigned long kAtHwcap2 = 26;
constexpr unsigned long kAtHwcap3 = 29;

struct HwcapBit {
  unsigned long word;
  int bit;
  const char* name;
};

constexpr HwcapBit kHwcapBits[] = {
    {kAtHwcap, 0, "fp"},          {kAtHwcap, 1, "asimd"},         {kAtHwcap, 2, "evtstrm"},
    {kAtHwcap, 3, "aes"},         {kAtHwcap, 4, "pmull"},         {kAtHwcap, 5, "sha1"},
    {kAtHwcap, 6, "sha2"},        {kAtHwcap, 7, "crc32"},         {kAtHwcap, 8, "atomics"},
    {kAtHwcap, 9, "fphp"},        {kAtHwcap, 10, "asimdhp"},      {kAtHwcap, 11, "cpuid"},
    {kAtHwcap, 12, "asimdrdm"},   {kAtHwcap, 13, "jscvt"},        {kAtHwcap, 14, "fcma"},
    {kAtHwcap, 15, "lrcpc"},      {kAtHwcap, 16, "dcpop"},        {kAtHwcap, 17, "sha3"},
    {kAtHwcap, 18, "sm3"},        {kAtHwcap, 19, "sm4"},          {kAtHwcap, 20, "asimddp"},
    {kAtHwcap, 21, "sha512"},     {kAtHwcap, 22, "sve"},          {kAtHwcap, 23, "asimdfhm"},
    {kAtHwcap, 24, "dit"},        {kAtHwcap, 25, "uscat"},        {kAtHwcap, 26, "ilrcpc"},
    {kAtHwcap, 27, "flagm"},      {kAtHwcap, 28, "ssbs"},         {kAtHwcap, 29, "sb"},
    {kAtHwcap, 30, "paca"},       {kAtHwcap, 31, "pacg"},         {kAtHwcap, 32, "gcs"},
    {kAtHwcap, 33, "cmpbr"},      {kAtHwcap, 34, "fprcvt"},       {kAtHwcap, 35, "f8mm8"},
    {kAtHwcap, 36, "f8mm4"},      {kAtHwcap, 37, "svef16mm"},     {kAtHwcap, 38, "sveeltperm"},
    {kAtHwcap, 39, "sveaes2"},    {kAtHwcap, 40, "svebfscale"},   {kAtHwcap, 41, "sve2p2"},
    {kAtHwcap, 42, "sme2p2"},     {kAtHwcap, 43, "smesbitperm"},  {kAtHwcap, 44, "smeaes"},
    {kAtHwcap, 45, "smesfexpa"},  {kAtHwcap, 46, "smestmop"},     {kAtHwcap, 47, "smesmop4"},

    {kAtHwcap2, 0, "dcpodp"},     {kAtHwcap2, 1, "sve2"},         {kAtHwcap2, 2, "sveaes"},
    {kAtHwcap2, 3, "svepmull"},   {kAtHwcap2, 4, "svebitperm"},   {kAtHwcap2, 5, "svesha3"},
    {kAtHwcap2, 6, "svesm4"},     {kAtHwcap2, 7, "flagm2"},       {kAtHwcap2, 8, "frint"},
    {kAtHwcap2, 9, "svei8mm"},    {kAtHwcap2, 10, "svef32mm"},    {kAtHwcap2, 11, "svef64mm"},
    {kAtHwcap2, 12, "svebf16"},   {kAtHwcap2, 13, "i8mm"},        {kAtHwcap2, 14, "bf16"},
    {kAtHwcap2, 15, "dgh"},       {kAtHwcap2, 16, "rng"},         {kAtHwcap2, 17, "bti"},
    {kAtHwcap2, 18, "mte"},       {kAtHwcap2, 19, "ecv"},         {kAtHwcap2, 20, "afp"},
    {kAtHwcap2, 21, "rpres"},     {kAtHwcap2, 22, "mte3"},        {kAtHwcap2, 23, "sme"},
    {kAtHwcap2, 24, "smei16i64"}, {kAtHwcap2, 25, "smef64f64"},   {kAtHwcap2, 26, "smei8i32"},
    {kAtHwcap2, 27, "smef16f32"}, {kAtHwcap2, 28, "smeb16f32"},   {kAtHwcap2, 29, "smef32f32"},
    {kAtHwcap2, 30, "smefa64"},   {kAtHwcap2, 31, "wfxt"},        {kAtHwcap2, 32, "ebf16"},
    {kAtHwcap2, 33, "sveebf16"},  {kAtHwcap2, 34, "cssc"},        {kAtHwcap2, 35, "rprfm"},
    {kAtHwcap2, 36, "sve2p1"},    {kAtHwcap2, 37, "sme2"},        {kAtHwcap2, 38, "sme2p1"},
    {kAtHwcap2, 39, "smei16i32"}, {kAtHwcap2, 40, "smebi32i32"},  {kAtHwcap2, 41, "smeb16b16"},
    {kAtHwcap2, 42, "smef16f16"}, {kAtHwcap2, 43, "mops"},        {kAtHwcap2, 44, "hbc"},
    {kAtHwcap2, 45, "sveb16b16"}, {kAtHwcap2, 46, "lrcpc3"},      {kAtHwcap2, 47, "lse128"},
    {kAtHwcap2, 48, "fpmr"},      {kAtHwcap2, 49, "lut"},         {kAtHwcap2, 50, "faminmax"},
    {kAtHwcap2, 51, "f8cvt"},     {kAtHwcap2, 52, "f8fma"},       {kAtHwcap2, 53, "f8dp4"},
    {kAtHwcap2, 54, "f8dp2"},     {kAtHwcap2, 55, "f8e4m3"},      {kAtHwcap2, 56, "f8e5m2"},
    {kAtHwcap2, 57, "smelutv2"},  {kAtHwcap2, 58, "smef8f16"},    {kAtHwcap2, 59, "smef8f32"},
    {kAtHwcap2, 60, "smesf8fma"}, {kAtHwcap2, 61, "smesf8dp4"},   {kAtHwcap2, 62, "smesf8dp2"},
    {kAtHwcap2, 63, "poe"},

    {kAtHwcap3, 0, "mtefar"},     {kAtHwcap3, 1, "mtestoreonly"}, {kAtHwcap3, 2, "lsfe"},
    {kAtHwcap3, 3, "ls64"},       {kAtHwcap3, 4, "sveb16mm"},     {kAtHwcap3, 5, "sve2p3"},
    {kAtHwcap3, 6, "smelut6"},    {kAtHwcap3, 7, "sme2p3"},       {kAtHwcap3, 8, "f16mm"},
    {kAtHwcap3, 9, "f16f32dot"},  {kAtHwcap3, 10, "f16f32mm"},    {kAtHwcap3, 11, "svelut6"},
};

constexpr bool is_sme(const char* name) { return name[0] == 's' && name[1] == 'm' && name[2] == 'e'; }

// Every bit of `word` that stands for SME, SME2 or an extension of them.
constexpr uint64_t sme_bits(unsigned long word) {
  uint64_t bits = 0;
  for (const HwcapBit& entry : kHwcapBits) {
    if (entry.word == word && is_sme(entry.name)) {
      bits |= uint64_t{1} << entry.bit;
    }
  }
  return bits;
}

}  // namespace sme2
