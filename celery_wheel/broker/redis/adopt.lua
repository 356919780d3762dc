-- Makes this epoch the only one that may publish, trim or move an offset; returns the hash.
--
--   KEYS  1 the offset hash
--   ARGV  1 uuid  2 fence: the epoch, a colon, the instance of the store  3 the store's address  4 its place, for people
--         5 milliseconds after which a holder without a sign of life has ended  6 half of the leap of a claimed epoch
--         7 '1': this scheduler has seen another copy of its store at work
--
-- Positions mean nothing in another store, so a store never adopts the hash of another one, however long its holder is
-- silent: the tasks pending in the other store would stay there unseen.
--
-- Another instance with the same uuid is a copy of the store. One at the same address is the store itself, restored, or
-- after a restart of its machine, unless the holder lives. One elsewhere was copied, until a person claims it: the claim
-- raises its epochs further than takeovers ever do.

local DIGITS = 19
local ZERO = string.rep('0', DIGITS)
local fields = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'place', 'seen', 'address')
local uuid, fence, place, seen, address = unpack(fields)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = string.format('%.0f', now)
local silent = now - (tonumber(seen) or 0)

local function epoch_of(text) return tonumber(string.sub(text, 1, DIGITS)) or 0 end

if uuid and uuid ~= ARGV[1] then return {'conflict', {uuid, place or '', string.format('%.0f', silent)}} end
if not uuid then
  if ARGV[7] == '1' then return {'copy', {'', '0', '0'}} end
  if redis.call('EXISTS', KEYS[1]) == 1 then return redis.error_reply('WRONGTYPE a hash that the wheel has not made') end
  redis.call(
    'HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', ARGV[2], 'address', ARGV[3], 'place', ARGV[4], 'seen', now_text,
    'last', ZERO)
  return {'adopted', {}}
end
if string.sub(fence, DIGITS + 2) ~= string.sub(ARGV[2], DIGITS + 2) then
  local ahead, leap = epoch_of(ARGV[2]) - epoch_of(fence), tonumber(ARGV[6])
  local elsewhere = address ~= ARGV[3]
  if ahead < leap and (elsewhere or ahead <= -leap or silent < tonumber(ARGV[5]) or ARGV[7] == '1') then
    redis.pcall('HSET', KEYS[1], 'refused', ARGV[4], 'refused_at', now_text)
    return {'copy', {place or '', seen or '0', elsewhere and '1' or '0', string.format('%.0f', silent)}}
  end
end
if fence > ARGV[2] then return {'fenced', fence} end

-- The number of the last chunk and the serial count within an epoch only: the next holder has counters of its own.
if fence < ARGV[2] then redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'last', ZERO, 'serial', ZERO) end
-- A full server may refuse this write; the holder still gets its answer.
redis.pcall('HSET', KEYS[1], 'address', ARGV[3], 'place', ARGV[4], 'seen', now_text)
return {'adopted', redis.call('HGETALL', KEYS[1])}
