"""The plots of the stories, as text with choices of words.

`[a|b|c]` stands for one of its parts (they nest; an empty part leaves the words out), `{A}` for a
fact of the cast, and an empty line for a new paragraph. Lines `name = a | b` at the top draw a fact
that the whole story keeps to.
"""

from typing import NamedTuple


class Plot(NamedTuple):
    """What a request may call the story, and the story after its opening."""

    topic: str
    text: str


PLOTS = (
    Plot(
        "a lost {toy}",
        """
        where = behind a big tree | in the tall grass | under a bench | in a basket | under a \
        bush | beside the well

        [{A} had a {color} {toy}.|{His} best thing was a {color} {toy}.|{A} owned a {color} \
        {toy} and took it everywhere.] [{Elder} had given it to {him}.|It was a gift from {his} \
        {elder}.|{He} loved it very much.]

        One [morning|day|afternoon], the {toy} was gone! {A} [looked in the kitchen|looked in \
        every room|searched all around the {place}|ran to the {place} and back], but it was not \
        there. ["Where is my {color} {toy}?" {he} cried.|{A} sat down and began to cry.|{He} \
        felt very sad.]

        {B} the {bkind} [heard {him}|came by|saw that {A} was sad]. ["What is wrong?" asked \
        {B}.|"Why are you sad?" {B} asked.] "I lost my {color} {toy}," said {A}. ["Do not worry. \
        I will help you look," said {B}.|"Then let us look together," said {B}.]

        They looked [here and there|high and low|for a long time]. [They asked a bird, but the \
        bird had not seen it.|They looked near the {place}.|] Then {B} [looked|peeked] {where}. \
        "[Look|Here it is|I see something {color}]!" {bhe} [shouted|called]. [There was|It was] \
        the {color} {toy}!

        {A} [hugged the {toy}|held the {toy} tight|jumped for joy] and [thanked {B}|said, "Thank \
        you, {B}!"]. [From then on, {A} always put the {toy} away before bed.|Then {A} let {B} \
        play with the {toy}, too.|They played with the {color} {toy} until the sun went down.]
        """,
    ),
    Plot(
        "making a new friend",
        """
        {A} [had no one to play with|was often alone|had just moved and knew nobody]. [{He} \
        watched the others play, but {he} was too shy to ask.|"I wish I had a friend," {he} \
        said.|Every day {he} played alone with {his} {color} {toy}.]

        One {weather} day, {A} went to the {place}. There {he} saw {friend}. {B} was sitting \
        [all alone|by {bhimself}|quietly] and [looked sad|looked lonely|was drawing in the \
        sand].

        {A}'s heart beat fast. [{He} took a deep breath.|{He} took one small step, and then one \
        more.] "Hello. My name is {A}," {he} said. ["Would you like to play with my {color} \
        {toy}?"|"Do you want to play with me?"]

        {B} [looked up and smiled|smiled a big smile]. "[Yes, please|I would love to]! I am {B}. \
        [I was afraid that nobody would talk to me.|I am new here.|I wanted a friend, too.]"

        They played with the {color} {toy} [all day|until dinner|for hours]. [They shared \
        {foods}, too.|They ran and laughed and told jokes.|They made up a new game.] [When it \
        got dark, {B} said, "Can we play again tomorrow?" "Yes!" said {A}.|"See you tomorrow!" \
        said {B} when it was time to go.] {A} [was not lonely anymore|walked home with a happy \
        heart|had a friend at last].
        """,
    ),
    Plot(
        "sharing",
        """
        {A} had [three|four|five|six] {foods} in {his} {color} bag. [They smelled so \
        good!|{Elder} had made {him} a nice lunch.|{He} could not wait to eat them.] {He} walked \
        to the {place} to have a picnic.

        On the way, {he} met {friend}. [{B}'s tummy made a loud noise.|{B} looked tired and \
        hungry.] "[I forgot my lunch|I have not eaten today|I lost my food in the river]," said \
        {B}.

        {A} looked at {his} {foods}. [{He} wanted to keep them all.|"If I share, I will have \
        less," {he} thought.|They were {his} favorite food.] But then {he} looked at {B}'s sad \
        face. ["You can have some of mine," said {A}.|"Sit down and eat with me," {A} said.]

        {B} [was so glad|smiled at once|clapped]. They [sat under a tree|sat in the sun|sat down \
        side by side] and ate the {foods} together. ["These are the best {foods} in the world," \
        said {B}.|Every bite tasted sweet.]

        [The next day|A few days later|That evening], {B} came to {A} with [a basket of \
        berries|a jar of honey|a warm loaf of bread]. "You shared with me, so I want to share \
        with you," {bhe} said. {A} learned that [food tastes better with a friend|sharing makes \
        two hearts happy|a kind deed comes back].
        """,
    ),
    Plot(
        "being afraid of the dark",
        """
        noise = Tap, tap, tap | Whoo, whoo | Scratch, scratch | Creak, creak
        cause = only a branch at the window | only the wind | only a small owl | only an old \
        door

        {A} was afraid of [the dark|the night]. [When the sun went down, {he} hid under {his} \
        blanket.|Every night, {he} asked {his} {elder} to stay.|{He} never went out after \
        dinner.]

        One night, {A} heard a noise. "{noise}!" [{He} began to shake.|{His} heart went boom, \
        boom.|{He} held {his} {color} {toy} tight.] "[Is it a monster?|Who is there?]" {he} \
        whispered.

        {Elder} came with a [small lamp|candle]. "[Let us go and look together|Let us see what \
        makes that noise]," {ehe} said. {A} [did not want to go|was scared], but {he} took \
        {ehis} hand. Step by step, they [went closer|walked to the window]. They looked, and it \
        was {cause}!

        {A} [began to laugh|laughed and laughed]. ["It was not a monster at all!" {he} said.|"I \
        was afraid of that?" {he} said.] Then {his} {elder} [pointed to the sky|opened the \
        curtain]. [Stars were shining like tiny lamps.|A big round moon was smiling down.] \
        "[See|Look], the dark has pretty things, too," {ehe} said.

        That night, {A} [slept well|went to bed with a smile|turned off the lamp all by \
        {himself}]. When {he} heard "{noise}" again, {he} [just smiled|was not scared] and \
        closed {his} eyes.
        """,
    ),
    Plot(
        "learning to swim",
        """
        {A} [lived near the water, but {he} could not swim|was afraid of the water]. [All {his} \
        friends jumped in, splash, splash!|The water looked so deep.|"The water is too cold and \
        too big," {he} always said.] {A} only [watched from the side|sat on a rock and watched].

        One {weather} day, {B} the {bkind} [swam up to {him}|came to sit with {him}]. "[Why do \
        you not come in?|Come and swim with me!]" {bhe} said. "I am afraid," said {A} [in a \
        small voice|and looked down]. "[I was afraid once, too|That is all right]," said {B}. \
        "We can go slowly."

        First, {A} put one [toe|foot] in the water. [It was cold, but it felt nice.|It tickled!] \
        Then {he} went in up to {his} [knees|belly]. {B} stayed beside {him}. "[Kick, kick, \
        kick|Now kick and breathe]!" said {B}. [{A} got water in {his} nose, but {he} tried \
        again.|{A} splashed and sank and tried again.]

        [After many tries|Day after day, {he} tried. Then one day], {A} [did not sink|was \
        floating]! "I am swimming! [Look at me|Look, {B}]!" {he} [shouted|cried]. {B} \
        [cheered|clapped].

        [Now the two friends swim together every day.|That evening, {A} told {his} {elder} all \
        about it. "I was brave today," {he} said.|{A} learned that being brave means trying even \
        when you are scared.]
        """,
    ),
    Plot(
        "helping a little bird",
        """
        hurt = wing | leg
        bird = robin | sparrow | blackbird | little bird

        One {weather} [morning|day], {A} was [walking|playing] near the {place}. {He} heard a \
        [soft|sad|small] sound. "Peep, peep!" [In the grass|Under a bush|Next to a stone] sat a \
        {bird}. Its {hurt} was hurt, and it could not fly home.

        "Oh, you poor thing," said {A}. "[I will help you|Do not be afraid]." {He} [picked it up \
        with care|held it gently] and [put it in {his} {color} hat|wrapped it in a {color} \
        scarf]. Then {he} [ran|hurried] to {his} {elder}. "[Can we help this {bird}?|This {bird} \
        is hurt. What can we do?]" {he} asked.

        {Elder} [tied a soft cloth around the {hurt}|cleaned the {hurt}]. "[It needs rest and \
        food|It needs time to heal]," {ehe} said. {A} made a nest in a box. [Every day|Each \
        morning], {he} gave the {bird} [seeds|crumbs] and water. [At night, {he} sang it a \
        song.|{B} the {bkind} came to see it, too.|]

        After [a week|many days], the {hurt} was well. The {bird} hopped [up and down|out of the \
        box]. {A} [was sad to let it go|felt a little sad], but {he} knew that the {bird} wanted \
        to be free. {He} [carried it outside|opened the window]. The {bird} flew up, up, up!

        [The next morning|Now, every morning], the {bird} [sat in a tree near {A}'s home and \
        sang|came back to sing]. [It was a song to say thank you.|"Good morning, my friend!" \
        said {A}.]
        """,
    ),
    Plot(
        "a broken {toy}",
        """
        fix = glue | string | tape | a strong thread

        {A} and {B} the {bkind} were best friends. {B} had a {color} {toy} that {bhe} [loved|was \
        very proud of]. One day, {A} asked, "May I [hold|borrow] your {toy}?" "Yes, but please \
        be careful," said {B}.

        {A} [ran|hopped|danced] around with the {toy}. {He} [tripped on a stone|slipped on the \
        wet grass|bumped into a tree]. [Crack!|Oh no!] The {color} {toy} broke.

        {A} [felt terrible|felt hot and sad]. [{He} wanted to hide it.|For a moment, {he} wanted \
        to run away.] But {he} went to {B} and said, "[I am so sorry|I am very sorry]. I broke \
        your {toy}." {B}'s eyes filled with tears. "[It was my favorite|I loved that {toy}]," \
        {bhe} said.

        "I will try to fix it," said {A}. {He} went home and asked {his} {elder} for {fix}. \
        {Elder} [showed {him} what to do|helped {him}]. They worked [slowly and carefully|all \
        afternoon|until it got dark].

        [The next day|In the morning], {A} brought the {toy} back. [It had a little mark, but it \
        was whole again.|It was almost like new.] {B} [smiled|hugged {A}]. "[You fixed it! Thank \
        you|I like it even more now|Thank you for telling the truth]," {bhe} said. And they were \
        [still best friends|friends as before].
        """,
    ),
    Plot(
        "a picnic in the rain",
        """
        shelter = cave | barn | big tree | little hut

        {A} and {B} the {bkind} wanted to have a picnic {at}. {A} brought {foods}, and {B} \
        brought a {color} blanket. [The sun was warm when they left.|They sang all the \
        way.|"This will be the best day!" said {A}.]

        [They had just sat down when|But as soon as they sat down,] a dark cloud came. [Drip, \
        drop!|Plop, plop!] It began to rain. [The blanket got wet.|Soon they were both wet.] \
        "Our picnic is [spoiled|ruined]!" cried {A}.

        "[Quick|Come], take the {foods}!" said {B}. They ran [as fast as they could|hand in \
        hand] and found a {shelter}. It was [dry|nice and dry] there. {A} was still [sad|cross]. \
        "[We cannot have a picnic now|I wanted to sit in the sun]," {he} said.

        {B} [thought for a bit|smiled]. "[Why not have our picnic right here?|We can eat here \
        and listen to the rain.]" So they [sat down|put the {color} blanket on their knees] and \
        ate the {foods}. [They told each other funny stories.|They counted the drops.|They sang \
        songs about the rain.]

        [By and by|At last], the rain stopped. [A bright rainbow stood over the {place}.|The sun \
        came out and there was a rainbow.] "[If it had not rained, we would not have seen it|The \
        rain gave us a present]," said {B}. {A} [laughed|nodded]. "[It was a good picnic after \
        all|This was the best picnic ever]," {he} said.
        """,
    ),
    Plot(
        "learning to ride a bike",
        """
        {A} got a {color} bike from {his} {elder}. [It had a shiny bell.|It had two big \
        wheels.|It was just the right size.] {A} [wanted to ride at once|got on the bike], but \
        [it was hard|the bike went left and right]. Bump! {He} fell into [a bush|the soft \
        grass|a puddle].

        "[I will never learn|I cannot do it]," said {A}. {He} [left the bike by the fence|kicked \
        a stone|wanted to give up]. {B} the {bkind} [saw it all|came over]. "[I fell ten times \
        when I was learning|Everyone falls at first]," {bhe} said. "Try again. I will hold the \
        seat."

        So {A} tried again. {B} held the bike and ran [behind|along]. "[Look ahead, not \
        down|Keep going, keep going]!" {bhe} called. {A} [fell again, but it did not hurt so \
        much|wobbled, but {he} did not fall]. [Every day, they went to the {place} to \
        practice.|They tried again and again until dinner.|]

        Then [one {weather} day|all at once], {A} looked back. {B} was [far behind|standing \
        still] and waving! {A} was riding all [alone|by {himself}]. "I am doing it!" {he} \
        [shouted|yelled] and rang the bell. [Ding, ding!|]

        {Elder} [clapped|was so proud]. "[You did not give up|You kept trying]," {ehe} said. {A} \
        [rode the {color} bike up and down the road three times|hugged {B} and said, "Thank you \
        for helping me."]
        """,
    ),
    Plot(
        "baking a cake",
        """
        missing = eggs | milk | butter | sugar
        fruit = cherry | apple | lemon | berry

        Tomorrow was {his} {elder}'s birthday. {A} wanted to bake a {fruit} cake. [{He} had \
        never baked a cake before.|{He} put on a {color} apron.] {He} [looked in the kitchen|got \
        out a big bowl]. There was flour, but {he} could not find any {missing}! "[Oh dear|Oh \
        no], I cannot bake without {missing}," {he} said.

        {A} went to {B} the {bkind}. "Do you have {missing}?" {he} asked. "[Yes, I do|I have \
        plenty]," said {B}. "[May I help you bake?|Can I come and help?]" "Yes, please!" said \
        {A}.

        They [mixed and stirred|stirred and stirred]. [Flour went everywhere, even on {B}'s \
        nose!|{A} laughed because {B} had flour on {bhis} ears.] Then they put the cake in the \
        oven. ["Is it ready?" {A} asked again and again. "Not yet," said {B}.|They waited and \
        washed the bowls.] [Soon|After a while], a sweet smell filled the room.

        The cake came out [round and golden|a little crooked, but golden]. They put a {fruit} \
        slice on top. The next day, {A} gave it to {his} {elder}. "[Happy birthday|Surprise]!" \
        {he} said.

        {Elder} took a bite and [smiled|closed {ehis} eyes]. "[This is the best {fruit} cake I \
        have ever had|How sweet it is]," {ehe} said. "I did not do it alone," said {A}. "{B} \
        gave me {missing} and helped me." So they all [ate the cake together|had a big slice].
        """,
    ),
    Plot(
        "planting a seed",
        """
        plant = sunflower | tomato plant | pumpkin plant | bean plant | rose

        {Elder} gave {A} a tiny seed. "[If you take care of it, it will grow|It is small now, \
        but wait and see]," {ehe} said. {A} [put it in the ground near the {place}|planted it in \
        a {color} pot] and gave it water.

        The next day, {A} looked. [There was nothing.|{He} saw only dirt.] {He} looked the day \
        after that, too. Still nothing! "[This seed is bad|It will never grow]," said {A}. {He} \
        [wanted to dig it up|was cross and sad].

        "[Wait|Do not dig it up]," said {B} the {bkind}. "[A seed needs time|Seeds are slow]. It \
        needs water and sun, and it needs you to be patient." So {A} waited. [{He} gave it water \
        every morning.|Every day, {he} sang to it.] It rained, and the sun came out, and it \
        rained again.

        Then, one {weather} morning, {A} saw [something green|a tiny green leaf]. "[Come quick, \
        {B}|{B}, look]! It is growing!" {he} called. The leaf [became a stem|grew and grew]. [By \
        summer|After many weeks], it was a [tall|beautiful|fine] {plant}.

        {A} [danced around it|was very proud]. "[You were right|Now I know], {B}," {he} said. \
        "[Good things take time|It was good to wait]." {Elder} [smiled|nodded] and gave {him} [a \
        whole bag of seeds|another seed].
        """,
    ),
    Plot(
        "a race",
        """
        There was going to be a race from the {place} to the [big tree|old oak|red gate]. The \
        prize was a {color} {toy}. {A} wanted to win [so much|more than anything]. {B} the \
        {bkind} wanted to win, too. [{B} was very fast.|"I am the fastest of all," said {B}.]

        "One, two, three, go!" [They ran like the wind.|Off they went!] {B} was in front, and \
        {A} was right behind. [Dust flew up.|Everybody cheered.] Then {B} [fell over a \
        root|slipped in the mud] and hurt {bhis} [knee|foot]. "Ouch!" {bhe} cried.

        Now {A} was first! {He} could [see the end|see the {color} {toy}]. But {he} heard {B} \
        [cry|call out]. {A} stopped. [What should {he} do?|{He} looked ahead, and {he} looked \
        back.] Then {he} [turned around|ran back]. "[Are you hurt?|Can you stand?] Lean on me," \
        {he} said.

        Slowly, the two walked [on|to the end] together. [A turtle passed them and won.|All the \
        others had finished long ago.] {A} did not get the {toy}. But everyone [clapped for \
        {him}|cheered the loudest for {him}].

        "[Why did you stop for me?|Why did you not win?]" asked {B}. "[A friend is better than a \
        {toy}|I did not want to leave you]," said {A}. [The next day, {B} made {him} a paper \
        medal.|From that day on, they ran side by side.]
        """,
    ),
    Plot(
        "telling the truth",
        """
        thing = blue vase | glass bowl | flower pot | tea cup | big jug

        {Elder} had a {thing} [on the table|by the window]. "[Please do not play ball in the \
        house|Play outside, please]," {ehe} always said. But it was [raining|cold] outside, and \
        {A} [was bored|wanted to play]. {He} threw {his} {color} ball up high. Crash! It hit the \
        {thing}, and there were pieces all over the floor.

        {A} [was scared|felt cold inside]. [{He} hid the ball under the bed.|{He} ran to {his} \
        room.] Soon {his} {elder} came in. "What happened here?" {ehe} asked. ["The wind did \
        it," said {A}.|"I do not know," said {A}.] {Elder} [said nothing|just began to sweep].

        {A} could not [eat|play|sleep]. [There was a heavy stone in {his} tummy.|The lie felt \
        heavy.] {He} told {B} the {bkind} about it. "[Tell the truth|You should say what you \
        did]," said {B}. "[It is hard, but then you will feel better|You will feel lighter]."

        So {A} went to {his} {elder}. "[I did it|It was me]. I broke it with my ball, and I \
        lied. I am sorry," {he} said. [A tear ran down {his} face.|] {Elder} [took {him} in \
        {ehis} arms|sat down beside {him}]. "Thank you for telling me the truth," {ehe} said. \
        "[That was brave|A broken thing can be replaced, but trust is worth more]."

        They [cleaned up together|swept up the last pieces together]. From then on, {A} [played \
        ball outside|always told the truth].
        """,
    ),
    Plot(
        "getting lost in the woods",
        """
        sign = the {color} ribbons | the white stones | the stream | the narrow path

        One {weather} day, {A} went into the woods to [pick berries|look for mushrooms|find \
        flowers]. "[Do not go too far|Stay on the path]," said {his} {elder}. But {A} saw a \
        [butterfly|little squirrel|bright feather] and [went after it|left the path]. [Farther \
        and farther {he} went.|]

        When {A} stopped, {he} did not know where {he} was. [All the trees looked the same.|It \
        was getting dark.] "[Help! Is anyone there?|Which way is home?]" {he} called. [Nobody \
        answered.|Only the wind answered.] {A} [sat down on a log|leaned on a tree] and cried.

        "[Why do you cry?|Are you lost?]" said a voice. It was {friend}. "Yes. I want to go \
        home," said {A}. "I know these woods," said {B}. "[We only have to follow|To get out, we \
        follow] {sign}." [{A} wiped {his} eyes.|{A} took {B}'s hand.]

        They walked and walked and followed {sign}. [{B} told jokes, so {A} was not afraid.|An \
        owl called, but {A} was not afraid now.] At last, {A} saw [a light|smoke over a roof]. \
        "That is my home!" {he} cried.

        {Elder} ran out and [hugged {him}|held {him} tight]. "I was so worried[!|about you!]" \
        {ehe} said. "I left the path, and I am sorry. {B} brought me home," said {A}. {B} \
        [stayed for soup|got a warm {food}] and {A} [never left the path again|made a new friend \
        that day].
        """,
    ),
    Plot(
        "a birthday surprise",
        """
        It was {A}'s birthday. {He} woke up early and [ran outside|put on {his} {color} hat]. \
        "[Today everyone will sing for me|This will be a great day]," {he} thought. But [nobody \
        was there|the house was quiet]. {Elder} was gone, too.

        {A} went to see {B} the {bkind}. "Do you [know|remember] what day it is?" asked {A}. \
        "[It is just a {weather} day|I am busy today]," said {B} and [walked away|closed the \
        door]. {A} went to the {place}. [There was no one there.|The others were gone.] "[They \
        all forgot my birthday|Nobody remembers me]," {he} said. {He} [felt like crying|walked \
        home slowly].

        When {A} opened the door, it was dark. Then the lights came on. "Surprise! Happy \
        birthday, {A}!" everyone shouted. [There were balloons everywhere.|There were {color} \
        balloons.] On the table were {foods} and a big cake. {B} was [holding a \
        present|smiling].

        "[We wanted to surprise you|I could not tell you before]," said {B}. "[I am sorry that I \
        walked away|Here is your present]." {A} opened the box. In it was a {color} {toy}! It \
        was just what {he} wanted.

        [They danced and ate until late.|They sang and played games all evening.] "[You did not \
        forget me|I thought you had forgotten]," said {A}. "[We could never forget you|Never]!" \
        said {his} {elder}. It was {his} best birthday ever.
        """,
    ),
    Plot(
        "a stubborn donkey",
        """
        treat = carrot | sweet apple | handful of hay

        {A} and {his} {elder} had a donkey [named Bumpy|named Gray|named Clover]. One day, they \
        had to take {foods} to the market. [They put the bags on the donkey's back.|] But on the \
        bridge, the donkey stopped. It would not move!

        {Elder} pulled. The donkey did not move. {A} pushed. The donkey [still did not move|just \
        flicked its ears]. "[Go, go|Please walk]!" said {A}. [Many people wanted to cross the \
        bridge.|A long line of carts stood behind them.] "[Shout at it|Pull harder]!" [said one \
        man|called a woman]. They [shouted|pulled], but the donkey [sat down|closed its eyes].

        {B} the {bkind} came along. "[Did you ask what it wants?|What is it afraid of?]" {bhe} \
        asked. {A} [thought about it|looked into the donkey's eyes]. {He} [stroked its soft \
        nose|spoke softly]. "[Are you afraid?|Are you tired?] I will walk in front of you," {he} \
        said. Then {he} held out a {treat}.

        The donkey [sniffed|lifted its head]. It took one step, and then one more. [Clip, \
        clop!|] Slowly, it walked over the bridge behind {A}. Everyone [cheered|clapped].

        "[How did you do it?|What a clever idea!]" [said {his} {elder}|{his} {elder} said]. "I \
        was [kind|gentle], that is all," said {A}. [The donkey ate the {treat}, and they went on \
        to the market.|And they came to the market in time to sell the {foods}.]
        """,
    ),
    Plot(
        "a trade",
        """
        want = little flute | picture book | wooden sled | pair of boots | straw basket

        {A} had a {color} {toy}, but what {he} really wanted was a {want}. [{He} had no \
        money.|{He} saw one at the market every week.] "Maybe I can trade," {he} said. So {he} \
        took the {toy} and [went out|set off].

        {At}, {he} met {friend}. {B} had a {want}! [It was just right.|{A}'s eyes grew big.] \
        "Will you trade your {want} for my {color} {toy}?" asked {A}. {B} [looked at the \
        {toy}|thought for a while]. "Yes!" {bhe} said. ["I always wanted a {toy}."|"That is a \
        fair trade."]

        {A} [ran home happily|danced all the way home] with the {want}. But [that night|the next \
        day], {he} began to miss the {toy}. [{His} {elder} had given it to {him}.|{He} had had \
        it since {he} was very small.] {He} went back to {B}. {B} was looking [sad|thoughtful], \
        too. "[I like the {toy}, but I miss my {want}|I miss my {want} a little]," said {B}.

        They [looked at each other|looked at the {toy} and the {want}] and laughed. "[I know|I \
        have an idea]," said {A}. "[We can share|Let us take turns]! One week, you have the \
        {toy} and I have the {want}. The next week, we swap."

        And so they did. [Every week they met {at}.|Each week they met to swap.] In the end, {A} \
        had [a {toy}, a {want}, and a friend|the best trade of all: a new friend].
        """,
    ),
    Plot(
        "being patient",
        """
        {Elder} was making {bakes}. [The kitchen smelled sweet.|{A} could smell them from \
        outside.] "[Can I have one now?|Are they ready?]" asked {A}. "Not yet," said {his} \
        {elder}. "[They are too hot|You must wait until they are cool]."

        {A} [waited one minute|waited a tiny bit]. It felt like [a whole day|forever]. When \
        {his} {elder} [went outside|looked away], {A} took one and bit into it. "Ow! Ow! Hot!" \
        {he} cried. [{He} dropped it on the floor.|{His} tongue hurt.]

        {B} the {bkind} [was at the window|came in]. "What happened?" {bhe} asked. "I did not \
        wait," said {A} [sadly|in a small voice]. "[Drink some cold water|Here is some cold \
        water]," said {B}. "[Waiting is easier with a friend|Then let us wait together]. We can \
        play with my {color} {toy}."

        So they played [{at}|outside]. [They played so well that {A} forgot the time.|They \
        laughed so much that they forgot about the food.] Then they heard a call. "[Come in|It \
        is time]! The {bakes} are ready!" said {his} {elder}.

        Now they were [warm and soft|not too hot]. "I am sorry that I took one before," said \
        {A}. {Elder} [smiled|patted {his} head] and gave {him} and {B} one {bake} each. [It was \
        worth the wait.|"They taste better when you wait," said {A}.]
        """,
    ),
    Plot(
        "a {kind} who wanted to reach the moon",
        """
        tower = stones | boxes | chairs | pots

        Every night, {A} looked at the moon. "[I want to touch it|How pretty it is]," {he} said. \
        "[If only I could reach it|I want to hold it]!" {His} {elder} [smiled|laughed]. "The \
        moon is very far away," {ehe} said.

        But {A} did not give up. {He} made a tower of {tower} on top of a hill. {He} climbed up \
        and [stretched|reached out]. [It was not high enough.|The moon was still far away.] {B} \
        the {bkind} came to help and brought more {tower}. They [built all evening|piled them \
        higher]. {A} climbed up again. The tower [shook|leaned to one side]. Crash! {A} fell \
        into [the soft grass|a pile of leaves].

        "[Are you hurt?|Oh no!] [That was a big fall|You fell so far]," said {B}. "I am all \
        right," said {A}, "but I will never reach the moon." {B} [thought hard|looked around]. \
        Then {bhe} took a {color} bucket and filled it with water. "[Look in here|Come and \
        see]," {bhe} said.

        {A} looked into the bucket. There was the moon, [round and white|small and bright], \
        right in the water! {A} put one finger in. [The moon danced.|Tiny waves made it shine.] \
        "I touched the moon!" {he} [whispered|laughed].

        {A} [hugged {B}|thanked {B}]. [Now, on clear nights, they fill the {color} bucket and \
        visit the moon.|That night, {he} dreamed of the moon in the {color} bucket.]
        """,
    ),
    Plot(
        "a cold winter",
        """
        Winter came, and [the snow was deep|it was very cold]. {A} had a warm [bed|home] and a \
        lot of {foods}. [{He} sat by the window and watched the snow.|{He} was glad to be \
        inside.] Then there was a knock. Knock, knock!

        {A} opened the door. Outside stood {friend}. [{Bhe} had snow on {bhis} nose.|{Bhe} was \
        shaking.] "[The wind blew my roof away|My home is full of snow]," said {B}. "May I come \
        in and get warm?"

        {A} [had only one blanket|had only one small bed]. {He} [thought for a moment|looked at \
        {B}'s cold feet]. "Come in, come in," {he} said. {He} put {his} {color} blanket around \
        {B} and gave {bhim} a {food}. "[You are very kind|I feel warm already]," said {B}.

        [All night, the wind blew.|The storm went on for three days.] The two [told stories|sang \
        songs and played games]. [They slept close together and were warm.|They took turns with \
        the {color} blanket.]

        When the [storm was over|sun came back], {A} helped {B} [fix the roof|clear the snow \
        away]. [They worked hard until it was done.|It took all day.] "[Now my home is your \
        home, too|You can visit me any time]," said {B}. "[This winter, I was not cold for one \
        moment|It was a good winter]," said {A}. [And in spring, they looked for flowers \
        together.|And they had {foods} together every week.]
        """,
    ),
    Plot(
        "a scary noise in the {place}",
        """
        who = baby goat | kitten | puppy | little owl
        stuck = in a hole | in a thorn bush | behind a big rock | under a fallen branch

        [The animals were talking.|Everyone was whispering.] "There is a monster near the \
        {place}!" they said. "[It howls all night|It cries and growls]." [Nobody dared to go \
        there.|Everyone stayed at home.]

        {A} was afraid, too, but {he} wanted to know [the truth|what it was]. "I will go and \
        see," {he} said. "[Then I will come with you|Not without me]," said {B} the {bkind}. {A} \
        took a {color} lantern, and they [went off|walked slowly] to the {place}.

        "Oooh, oooh!" [went the noise|they heard]. {B} [hid behind {A}|held on to {A}]. "[Let us \
        run|I want to go home]!" {bhe} whispered. {A}'s [legs shook|heart beat fast], but {he} \
        held up the lantern. [They took one more step.|They went closer.]

        There was no monster. It was only a {who}! It was stuck {stuck}. "[Please help me|I have \
        been calling for help]," it [cried|said]. {A} pulled, and {B} [pushed|pulled, too]. One, \
        two, three, and the {who} was free!

        They [took it home|brought it to its mother]. The {who} [jumped for joy|was so happy]. \
        The next day, everyone laughed about the "monster". "[You were brave|How brave you \
        are]," they told {A} and {B}. "[We were scared, but we went anyway|Sometimes a scary \
        thing only needs help]," said {A}.
        """,
    ),
    Plot(
        "two friends who had a fight",
        """
        {A} and {B} the {bkind} [played together every day|were best friends]. One day, they \
        found a {color} {toy} [near the {place}|on the road]. "I saw it first! It is mine," said \
        {A}. "No, it is mine!" said {B}. [They pulled and pulled.|They both held on to it.] "[Go \
        away|I do not like you anymore]!" shouted {A}. {B} [went home|ran away] in tears.

        Now {A} had the {toy} all to {himself}. {He} played with it, but it was [no fun|boring] \
        alone. [{He} looked at the door.|Nobody laughed with {him}.] {He} missed {B}. "[What is \
        wrong|Why so quiet]?" asked {his} {elder}. {A} told {ehim} about the fight. "[Which is \
        worth more, a {toy} or a friend?|You can be right and still be lonely. What will you \
        do?]" asked {his} {elder}.

        {A} [thought all night|lay awake and thought]. In the morning, {he} took the {color} \
        {toy} and went to {B}'s home. {B} [opened the door|was sitting outside]. "I am sorry \
        that I shouted," said {A}. "You can have the {toy}." "[I am sorry, too|No, I am sorry]," \
        said {B}. "[Let us share it|We can play with it together]."

        They [hugged|shook hands and smiled]. They took the {toy} to the {place} and took turns. \
        [It was twice as much fun.|They laughed all day.] [After that, they sometimes had a \
        fight, but they always made up.|And from that day on, they shared everything they \
        found.]
        """,
    ),
)
