-- Pushes a chunk into its lists and moves the lane's offset from `after` to `upto`: both, or neither.
--
--   KEYS  1 the offset hash    then `lists` lists    then for each list that expires those of all `priorities`
--         then `counted` lists
--   ARGV  1 uuid  2 epoch  3 number of the chunk  4 number of the last confirmed chunk  5 lane field  6 failed field
--         7 since field  8 after  9 upto  10 since  11 failed before, JSON: row id -> reason
--         12 lists  13 priorities  14 broadcasts  15 counted
--         then for each list: row ids "1,3,4.5", one for each message, their count, ms of its expiry or 0;
--         for each broadcast: row id, topic, message; then the messages, list by list
--
--   1 compare   2 check every list's type   3 move the offset   4 push, renew expiries, broadcast   5 note the failed rows
--   6 count the messages of the last lists
--
-- Step 3 is the first write, and the only one that Redis may refuse for reasons of its own (out of memory,
-- read-only, cannot persist): then it raises, and nothing has changed. A later failure is the destination's fault: the
-- script catches it, and the row has failed. Nothing after step 3 may raise, since Redis does not roll a script back.

-- Lua passes at most about 8,000 values in one call; 500 keeps its stack small.
local SLICE = 500

local lane, failed_field, after, upto = ARGV[5], ARGV[6], ARGV[8], ARGV[9]
local fields = redis.call('HMGET', KEYS[1], 'uuid', 'epoch', lane, failed_field, 'last')
local uuid, epoch, offset, last = fields[1], fields[2], fields[3], fields[5]

if uuid ~= ARGV[1] or not epoch then return {'missing'} end
if epoch > ARGV[2] then return {'fenced', epoch} end
if epoch < ARGV[2] or not offset then return {'missing'} end
-- A confirmed chunk, of any lane, was lost: this chunk would be the last one, and nobody would see the loss.
if not last or last < ARGV[4] then return {'missing'} end
if offset == upto then return {'already', fields[4] or '{}'} end
if offset > upto then return {'already', '{}'} end
if offset < after then return {'rolled back', offset} end
if offset > after then return {'inside', offset} end

local failed = cjson.decode(ARGV[11])
local lists, priorities, broadcasts = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local first_broadcast = 16 + 3 * lists
local first_message = first_broadcast + 3 * broadcasts

local function is_list(key)
  local answer = redis.pcall('TYPE', key)
  return answer['ok'] == 'list', answer['ok'] or answer['err'] or '?'
end

local function split(ids)
  local numbers = {}
  for id in string.gmatch(ids, '[^,]+') do numbers[#numbers + 1] = id end
  return numbers
end

-- A row with a queue that is no list goes to none of its queues: once that is fixed, it can be requeued as a whole.
local sound = true
for i = 1, lists do
  local found, kind = is_list(KEYS[1 + i])
  if not found and kind ~= 'none' then
    sound = false
    local reason = "key '" .. KEYS[1 + i] .. "' holds a " .. kind .. ', not a list'
    for _, id in ipairs(split(ARGV[13 + 3 * i])) do failed[id] = reason end
  end
end

if last < ARGV[3] then last = ARGV[3] end
redis.call('HSET', KEYS[1], lane, upto, failed_field, '{}', ARGV[7], ARGV[10], 'last', last)

local function push(key, messages, first, stop, ids)
  for at = first, stop, SLICE do
    local to = math.min(at + SLICE - 1, stop)
    local answer = redis.pcall('LPUSH', key, unpack(messages, at, to))
    if type(answer) == 'table' then
      local numbers = type(ids) == 'table' and ids or split(ids)
      for i = at - first + 1, to - first + 1 do failed[numbers[i]] = tostring(answer['err']) end
    end
  end
end

local at, expiring = first_message, 1 + lists
for i = 1, lists do
  local key, ids, count, ms = KEYS[1 + i], ARGV[13 + 3 * i], tonumber(ARGV[14 + 3 * i]), ARGV[15 + 3 * i]
  if sound then
    push(key, ARGV, at, at + count - 1, ids)
  else
    local messages, numbers = {}, {}
    for n, id in ipairs(split(ids)) do
      if not failed[id] then
        messages[#messages + 1] = ARGV[at + n - 1]
        numbers[#numbers + 1] = id
      end
    end
    push(key, messages, 1, #messages, numbers)
  end
  at = at + count
  if ms ~= '0' then
    -- An expiry is renewed only. No message gives one to a list that has none, or a shorter one: all that the list
    -- holds would end with it, also what others have put there.
    for n = expiring + 1, expiring + priorities do
      local left = redis.pcall('PTTL', KEYS[n])
      if type(left) == 'number' and left >= 0 and left < tonumber(ms) and is_list(KEYS[n]) then
        redis.pcall('PEXPIRE', KEYS[n], ms)
      end
    end
    expiring = expiring + priorities
  end
end

for i = 0, broadcasts - 1 do
  local b = first_broadcast + 3 * i
  local answer = redis.pcall('PUBLISH', ARGV[b + 1], ARGV[b + 2])
  if type(answer) == 'table' then failed[ARGV[b]] = tostring(answer['err']) end
end

local report = '{}'
if next(failed) then
  report = cjson.encode(failed)
  redis.call('HSET', KEYS[1], failed_field, report)
end

-- A key of another type is no queue: a message for it has failed.
local answer = {report}
for n = #KEYS - tonumber(ARGV[15]) + 1, #KEYS do
  local length = redis.pcall('LLEN', KEYS[n])
  answer[#answer + 1] = type(length) == 'number' and length or 0
end
return {'published', answer}
